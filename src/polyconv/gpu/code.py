"""Code of kernels on devices: made once a machine, kept beside the objects of the CPU, loaded once a process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

from polyconv.gpu.compile import ptx
from polyconv.gpu.device import device
from polyconv.gpu.driver import Function, driver
from polyconv.gpu.language import Kernel
from polyconv.kernels import objects

__all__ = ["Launchable", "forget", "function", "generator"]


class Launchable(Protocol):
    """A kernel as data."""

    @property
    def name(self) -> str:
        """All that shapes the code."""

    @property
    def threads(self) -> int:
        """Of a block."""

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""

    @property
    def cluster(self) -> int:
        """Blocks that reach each other's shared memory."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """Numbers that a launch is told, behind the pointers."""

    def kernel(self) -> Kernel:
        """What makes its code."""


@cache
def generator() -> str:
    """Fingerprint of the code that generates these kernels."""
    root = Path(__file__).parent
    shared = [root.parent / "kernels" / f"{name}.py" for name in ("emitter", "values", "mathfn")]
    beside = (root.parent / "operators").glob("**/*.py")  # which make kernels of their own
    own = [*root.glob("*.py"), *root.glob("kernels/*.py")]
    return objects.fingerprint([*own, *beside, *shared, root.parent / "dtypes.py"])


generator()  # now: the files may change while this process lives, the code that it has read does not

def forget() -> None:
    """Load code anew from now on, from the cache if it is there; what was loaded stays valid.  For measuring."""
    with _lock:
        _loaded.clear()


_lock = threading.RLock()
_loaded: dict[tuple[int, str], Function] = {}


def function(spec: Launchable, number: int) -> Function:
    """Code of a kernel on a device."""
    key = number, spec.name
    with _lock:
        found = _loaded.get(key)
        if found is not None:
            return found
        d, here = driver(), device(number)
        d.enter(number)

        def make() -> bytes:
            return d.machine_code(ptx(spec.kernel(), here.architecture))

        code = objects.kept(spec.name, (generator(), here.architecture, here.name, str(d.version)), make)
        name = "convolution" if "y" in spec.arguments else spec.name.partition(" ")[0]
        found = _loaded[key] = d.load(code, name, spec.threads, spec.shared, spec.cluster)
        return found
