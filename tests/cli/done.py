"""What a command of the command line left behind."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)
