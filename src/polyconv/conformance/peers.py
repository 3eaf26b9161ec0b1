"""Other engines, each in a process of its own: a problem in, its array or the reason for none out.

A guest that dies or hangs costs its process, never ours: the process is ended, the reason returned,
and the next request starts a new one.  It must not import any guest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from numpy.typing import NDArray

from polyconv.conformance.deviations import refusal
from polyconv.conformance.guests.worker import receive, send
from polyconv.conformance.operands import Operands
from polyconv.dataclass import dataclass
from polyconv.errors import Error
from polyconv.problem.problem import Problem

__all__ = ["ENGINES", "GuestError", "Peer", "available", "opened"]

ENGINES: dict[str, str] = {"onnxruntime": "onnxruntime", "openvino": "openvino", "torch": "torch"}
"""Engine, and the module whose presence makes it available."""


# Started through -c: a module run by -m after its package imported it would warn.
_WORKER = "import sys; from polyconv.conformance.guests.worker import main; main(sys.argv[1])"


class GuestError(Error):
    """A guest refused a request, died or took too long; the message is its own."""


def available() -> tuple[str, ...]:
    """Engines that are installed here."""
    return tuple(name for name, module in ENGINES.items() if importlib.util.find_spec(module))


@dataclass(slots=True)
class Peer:
    """One engine in a worker process that lives until it fails or is closed.

    Parameters
    ----------
    engine : str
        A name of ``ENGINES``.
    seconds : float
        Time limit of a request, after which the process is ended.
    """

    engine: str
    seconds: float = 30.0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def call(self, function: str, *arguments: Any) -> Any:
        """Result of a function of the guest's file.

        Raises
        ------
        GuestError
            With what the guest raised, or how its process ended.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, self.engine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            _kill(process)

        watch = threading.Timer(self.seconds, end)
        watch.daemon = True  # an interrupt must not leave the process waiting for it
        try:
            watch.start()
            send(process.stdin, (function, arguments))  # type: ignore[arg-type]
            succeeded, answer = receive(process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError):
            code_ = process.wait()
            how = (
                f"took longer than {self.seconds:g} s" if late.is_set() else f"died with exit status {code_}"
            )
            raise GuestError(f"{self.engine} {how} in {function}") from None
        finally:
            watch.cancel()
        if not succeeded:
            raise GuestError(f"{self.engine}: {answer}")
        return answer

    def run(self, p: Problem, made: Operands) -> NDArray[Any] | str:
        """Result of a problem, or the name of the reason why the engine has none."""
        reason = refusal(self.engine, p, made)
        if reason is not None:
            return reason
        try:
            result: NDArray[Any] = self.call("run_problem", p, made)
        except GuestError as error:
            return f"error: {error}"
        return result

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            try:
                self._process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                _kill(self._process)
                self._process.wait()
            self._process = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a worker and whatever it has forked: a child left behind would hold our pipe open for ever."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


@contextlib.contextmanager
def opened(engines: Iterable[str]) -> Iterator[dict[str, Peer]]:
    """Peers of the named engines, closed at the end."""
    peers = {engine: Peer(engine) for engine in engines}
    try:
        yield peers
    finally:
        for peer in peers.values():
            peer.close()
