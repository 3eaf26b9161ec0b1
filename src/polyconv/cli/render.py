"""What a person or a program sees: tables and lines, or one JSON document.

Results go to stdout, notes, progress and complaints to stderr; colours and progress only where a
terminal is.  The only file that writes to the streams; it knows nothing of convolution.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, Protocol, TextIO

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from polyconv.cli.interrupts import raise_lost

__all__ = [
    "Advance", "complain", "configure", "document", "facts", "line", "note", "progress", "table",
]  # fmt: skip

SCHEMA_VERSION = 1

_choices: dict[str, bool | None] = {"quiet": False, "color": None}


class Advance(Protocol):
    """Tells how far a job is: how many of its parts are done, and of how many if that is known."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Take the numbers."""


def configure(*, quiet: bool, color: bool | None) -> None:
    """Set what the global options say: silence on stderr; colours, or None to decide by the stream."""
    _choices.update(quiet=quiet, color=color)


def _console(stream: TextIO) -> Console:
    console = Console(
        file=stream, no_color=True if _choices["color"] is False else None, highlight=False, soft_wrap=True
    )
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 10_000  # a pipe has no edge: cells are never folded or cut there
    return console


def line(text: str = "") -> None:
    """Write a line of the result to stdout, as it is."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Write a remark to stderr."""
    if not _choices["quiet"]:
        _console(sys.stderr).print(escape(text), style="dim")


def complain(message: str, hint: str = "") -> None:
    """Write an error to stderr."""
    console = _console(sys.stderr)
    console.print(f"[bold red]polyconv: [/]{escape(message)}")
    if hint:
        console.print(escape(hint), style="dim")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], right: str = "") -> None:
    """Write a table to stdout.

    Parameters
    ----------
    title : str
        Stands above it.
    columns : sequence of str
        Headings.
    rows : sequence of rows
        One cell per column; floats get three significant digits, None a dash.  Where they do not fit the terminal,
        every row becomes a few lines: the first cell, and the others by name.
    right : str
        The headings of right-aligned columns, separated by spaces.
    """
    console, cells = _console(sys.stdout), [[_cell(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    if title:
        console.print(escape(title), style="bold")
    if sum(widths) + 2 * len(widths) > console.width:
        for row in cells:
            _block(console, columns, row)
        return
    for line_, style in ((columns, "bold"), (["-" * width for width in widths], "dim"), *((row, "") for row in cells)):
        padded = zip(columns, line_, widths, strict=True)
        spelled = "  ".join(" " * (width - cell_len(cell)) + cell if name in right.split() else
                            cell + " " * (width - cell_len(cell)) for name, cell, width in padded)  # fmt: skip
        console.print(escape(spelled.rstrip()), style=style)
    console.print()


def _block(console: Console, columns: Sequence[str], row: Sequence[str]) -> None:
    """A row that is wider than the terminal: its first cell, and below it the others by name."""
    pairs = [f"{name} {cell}".strip() for name, cell in zip(columns[1:], row[1:], strict=True) if cell not in ("", "-")]
    for text, indent, style in ((row[0], "", "bold"), ("; ".join(pairs), "  ", "")):
        for line_ in wrap(text, max(20, console.width), initial_indent=indent, subsequent_indent=indent + "  ",
                          break_long_words=False, break_on_hyphens=False):  # fmt: skip
            console.print(escape(line_), style=style)


def facts(title: str, pairs: Mapping[str, object]) -> None:
    """Write names and values to stdout, one pair a line under a title."""
    console = _console(sys.stdout)
    console.print(escape(title), style="bold")
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        console.print(f"  {escape(name):{width}}  {escape(_cell(value))}")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
    return str(value)


def document(content: dict[str, Any]) -> None:
    """Write the one JSON document of a command to stdout."""
    sys.stdout.write(json.dumps({"schema_version": SCHEMA_VERSION, **_plain(content)}, indent=2) + "\n")


def _plain(value: Any) -> Any:
    """Spell in JSON's terms: dataclasses as objects, paths as text, what is no finite number as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return value.as_posix() if isinstance(value, Path) else str(value)


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """Show how a long job goes, on stderr, where that is a terminal.

    Yields
    ------
    callable
        ``advance(done, total)``; raises KeyboardInterrupt if one was lost.
    """
    console = _console(sys.stderr)
    if _choices["quiet"] or not console.is_terminal:
        yield lambda done, total=None: raise_lost()
        return
    bar = Progress(
        TextColumn(escape(what)), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int | None = None) -> None:
            raise_lost()
            bar.update(task, completed=done, total=total)

        yield advance
