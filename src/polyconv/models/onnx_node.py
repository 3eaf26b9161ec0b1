"""A node's own protobuf message, for the host that runs it: parsed when it is asked for, which most nodes never are.

It must not know what a message says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["OnnxNode"]


class OnnxNode:
    """A message, or the bytes of one.

    Parameters
    ----------
    message : NodeProto or bytes
    """

    __slots__ = ("_message",)

    def __init__(self, message: NodeProto | bytes) -> None:
        self._message: Any = message

    @property
    def message(self) -> NodeProto:
        """The message."""
        if isinstance(self._message, bytes):
            from onnx import NodeProto

            self._message = NodeProto.FromString(self._message)
        return self._message

    def __reduce__(self) -> tuple[Any, ...]:
        data = self._message if isinstance(self._message, bytes) else self._message.SerializeToString()
        return OnnxNode, (data,)
