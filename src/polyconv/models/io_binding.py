"""``IOBinding``: inputs and outputs of a session bound to memory once, for many runs.

The one idea: it keeps books on names; the session reads and fills them.  Memory is the CPU's or a GPU's; what is bound
on a GPU stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError
from polyconv.models.graph import Array
from polyconv.models.limits import shorten
from polyconv.models.on_gpu import brought_back, synchronize
from polyconv.models.ort_value import OrtValue, at_address, check_target, device_named, fill

__all__ = ["IOBinding"]


class IOBinding:
    """What ``InferenceSession.io_binding`` returns; for ``run_with_iobinding`` of that session.

    Parameters
    ----------
    session : object
        Whose it is.
    checked : callable
        ``checked(name, array)``: the input as the session reads it; raises where it does not fit.
    outputs : collection of str
        Names of the session's outputs.
    """

    def __init__(self, session: object, checked: Callable[[str, Any], Array], outputs: Collection[str]) -> None:
        self.session, self._checked, self._names = session, checked, outputs
        self.inputs: dict[str, Array] = {}
        self.outputs: dict[str, OrtValue | int | None] = {}  # memory, or the GPU on which each run makes its own
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array, which is read at every run."""
        self.inputs[name] = self._checked(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an input to an OrtValue, of polyconv or onnxruntime."""
        self.inputs[name] = self._checked(name, ortvalue)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory at an address, which the caller keeps."""
        device = device_named(device_type, device_id)
        self.inputs[name] = self._checked(name, at_address(buffer_ptr, element_type, shape, device))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to memory at an address, which the caller keeps; without one each run makes its own."""
        device = device_named(device_type, device_id)
        if buffer_ptr is None:
            self._bind(name, device)
        elif element_type is None or shape is None:
            raise ArgumentError(f"buffer_ptr={buffer_ptr} needs element_type and shape; give all three")
        else:
            self._bind(name, OrtValue(at_address(buffer_ptr, element_type, shape, device)))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Bind an output to an OrtValue, whose memory every run fills."""
        self._bind(name, ortvalue if isinstance(ortvalue, OrtValue) else OrtValue(ortvalue))

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self.outputs.clear()

    def synchronize_inputs(self) -> None:
        """Wait for what was started on the GPUs on which inputs lie."""
        synchronize(self.inputs.values())

    def synchronize_outputs(self) -> None:
        """Wait for what was started on the GPUs on which results lie."""
        synchronize(value._value for value in self._results)

    def get_outputs(self) -> list[OrtValue]:
        """Outputs of the last run, in the order in which they were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Outputs of the last run as arrays of their own."""
        return [np.array(value.numpy()) for value in self._results]

    def targets(self, results: Mapping[str, str]) -> dict[str, Any]:
        """Memory that is bound to outputs, by the names of the results that they are."""
        return {results[name]: bound._value for name, bound in self.outputs.items() if isinstance(bound, OrtValue)}

    def filled(self, results: Sequence[Any]) -> None:
        """Take the results of a run: into the memory that is bound, where there is some."""
        pairs = list(zip(self.outputs.items(), results, strict=True))
        for (name, bound), result in pairs:  # all checks before the first store
            if isinstance(bound, OrtValue):
                check_target(bound._tensor(), result, f"the output {shorten(name)!r}")
            elif bound is not None and getattr(result, "device", None) != bound:
                raise ArgumentError(
                    f"the output {shorten(name)!r} is bound to CUDA device {bound}, where the session does not make "
                    f"it; bind it to 'cpu'"
                )
        for (_, bound), result in pairs:
            if isinstance(bound, OrtValue) and result is not bound._tensor():  # as it is where a run wrote into it
                fill(bound._tensor(), result)
        self._results = [
            bound if isinstance(bound, OrtValue) else OrtValue(brought_back(result) if bound is None else result)
            for (_, bound), result in pairs
        ]

    def _bind(self, name: str, value: OrtValue | int | None) -> None:
        if name not in self._names:
            known = shorten(list(self._names))
            raise ArgumentError(f"there is no output {shorten(name)!r}; the model's outputs are {known}")
        self.outputs[name] = value
