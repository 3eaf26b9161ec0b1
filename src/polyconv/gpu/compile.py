"""Kernels to PTX: the only file that talks to LLVM's back end for NVIDIA GPUs.

Few passes suffice: what the language unrolls is unrolled, variables become registers, and the driver's own compiler
schedules.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from polyconv.errors import Unsupported
from polyconv.gpu.language import TRIPLE, Kernel
from polyconv.kernels.compile import compiling

__all__ = ["ptx"]


@cache
def _machine(architecture: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(TRIPLE)
    except RuntimeError as error:
        raise Unsupported(f"llvmlite has no back end for NVIDIA GPUs ({error}); install the one from PyPI") from None
    return target.create_target_machine(cpu=architecture, features="+ptx80", opt=3)


def ptx(kernel: Kernel, architecture: str) -> str:
    """PTX of a kernel for an architecture such as ``sm_90a``."""
    import llvmlite.binding as llvm

    with compiling():
        machine = _machine(architecture)
        module = llvm.parse_assembly(kernel.text())
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return str(machine.emit_assembly(module))
