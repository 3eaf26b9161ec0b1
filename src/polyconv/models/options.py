"""What a session's caller chose for all its nodes.

It must not know nodes.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.models.limits import shorten
from polyconv.settings import resolve

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a session's caller chose for all its nodes; see ``polyconv.InferenceSession``.

    ``device`` is the number of a GPU; where it is ``is_mixed``, nodes without a kernel there run on the CPU.  Its steps
    are waited for where each ``is_timed``.
    """

    semantics: str = "onnx"
    accuracy: str | None = None
    threads: int | None = None
    workspace_limit: int | None = None
    rewrites: str = "all"
    layout: str | None = None
    device: int | None = None
    is_mixed: bool = False
    is_timed: bool = False

    def __post_init__(self) -> None:
        """Refuse what is none of the choices."""
        for name, words in (("semantics", ("onnx", "onnxruntime")), ("rewrites", ("all", "exact"))):
            given = getattr(self, name)
            if given not in words:
                raise ArgumentError(f"{name}={shorten(given)!r} is not known; choose {' or '.join(words)}")
        for name in ("accuracy", "threads", "workspace_limit", "layout"):
            resolve(name, getattr(self, name))
