"""The command line ``polyconv run | explain | bench | compare | check | tune | wisdom | cache | info``, a verb a file.

``main`` turns an argument list into an exit code.  This file stays free of Typer and rich, so that
importing polyconv never needs them: they are loaded when a command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from polyconv.cli.interrupts import counted

__all__ = ["EXIT_CODES", "VERBS", "main"]

VERBS = ("run", "explain", "bench", "compare", "check", "tune", "wisdom", "cache", "info")
"""The verbs in the order of ``--help``: each is a module of this package with a function ``command``."""

EXIT_CODES = {
    0: "success",
    1: "failure",
    2: "wrong usage",
    3: "the model or the operator is not supported",
    4: "results differ",
    5: "slower than before (bench --compare --fail-over)",
    130: "interrupted",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after ``polyconv``; by default the process's own.

    Returns
    -------
    int
        A key of ``EXIT_CODES``.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    with counted() as interrupts:
        try:
            from polyconv.cli.application import run
        except ModuleNotFoundError as missing:
            if missing.name not in ("typer", "rich"):
                raise
            sys.stderr.write(
                f"polyconv: the command line needs {missing.name}, which is not installed: "
                "pip install 'polyconv[cli]'\n"
            )
            return 1
        except BaseException:
            if not interrupts.count:
                raise
            sys.stderr.write("polyconv: interrupted\n")
            return 130
        return run(words, interrupts)
