"""The process that hosts one guest: requests in on one pipe, answers out on another.

A request names a function of the guest's file and its arguments; the answer is its result or what
it raised, as text.  It must not know what the functions compute.
"""

from __future__ import annotations

import importlib
import os
import pickle
import struct
import sys
from typing import Any, BinaryIO

__all__ = ["main", "receive", "send"]

_HEADER = struct.Struct("<Q")


def send(pipe: BinaryIO, message: Any) -> None:
    """Write one message, its length first."""
    body = pickle.dumps(message, protocol=5)
    pipe.write(_HEADER.pack(len(body)) + body)
    pipe.flush()


def receive(pipe: BinaryIO) -> Any:
    """Read one message; EOFError when the other side is gone."""
    header = pipe.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    body = pipe.read(_HEADER.unpack(header)[0])
    return pickle.loads(body)  # both ends are this package, in two processes of one user


def main(engine: str) -> None:
    """Answer requests for one guest until the pipe closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a guest that prints must not write into the answers
    guest = importlib.import_module(f"polyconv.conformance.guests.{engine}")
    while True:
        try:
            function, arguments = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            send(answers, (True, getattr(guest, function)(*arguments)))
        except Exception as error:
            send(answers, (False, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main(sys.argv[1])
