"""The fingerprint of a model with all its weights, which takes time to find.

It must not know what the weights mean.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

__all__ = ["Content"]


class Content:
    """Fingerprint of a model: of all that is no large value, and of these.  A thread finds it once it is to begin.

    Parameters
    ----------
    digest : str
        Fingerprint of the model without large values.
    large : mapping
        These.
    """

    def __init__(self, digest: str, large: Mapping[str, NDArray[Any]]) -> None:
        self._digest, self._values = digest, sorted(large.items())
        self._thread: threading.Thread | None = None
        self._found = ""

    def begin(self) -> None:
        """Begin to find it, while others do something else."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._find, daemon=True)
            self._thread.start()

    def _find(self) -> None:
        whole = hashlib.sha256(self._digest.encode())
        for name, a in self._values:
            whole.update(f"\n{name}\n{a.nbytes}\n".encode())
            whole.update(a.data)
        self._found = whole.hexdigest()

    def __call__(self) -> str:
        """The fingerprint."""
        if self._thread is not None:
            self._thread.join()
        if not self._found:  # the thread is lost in a fork
            self._find()
        return self._found
