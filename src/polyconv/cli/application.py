"""Words to an exit code: builds the Typer application from the verbs and maps errors to codes.

Every error leaves here in one of two forms: a line on stderr, or with ``--json`` one document on
stdout.  It knows no verb's options.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from polyconv.cli import EXIT_CODES, VERBS, render
from polyconv.cli.info import installed
from polyconv.cli.interrupts import Interrupts
from polyconv.errors import ArgumentError, DtypeError, Error, ModelError, OutOfMemory, Unsupported

__all__ = ["run"]

# Typer's own copy of click is private, an installed click may be another: its classes are found from
# the one that Typer exports.
_USAGE: type[Exception] = typer.BadParameter.__mro__[1]

# The first row that fits an error: its class, the word for programs, the exit code, the way on.
_ERRORS: tuple[tuple[type[BaseException], str, int, str], ...] = (
    (_USAGE, "usage", 2, "polyconv --help lists the verbs, polyconv VERB --help their options"),
    (Unsupported, "unsupported", 3, ""),
    (ModelError, "model", 1, ""),
    (OutOfMemory, "memory", 1, ""),
    (DtypeError, "dtype", 1, ""),
    (ArgumentError, "argument", 1, ""),
    (Error, "failure", 1, ""),
    (ImportError, "missing", 1, "pip install 'polyconv[all,bench]' brings every optional package"),
    (OSError, "file", 1, ""),
    (MemoryError, "memory", 1, "smaller sizes take less"),
    (typer.Abort, "interrupted", 130, ""),
    (KeyboardInterrupt, "interrupted", 130, ""),
)


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run one command and return its exit code; ``interrupts`` are held back until all is imported."""
    try:
        application = _application()
        interrupts.release()
        code = application(args=list(words), prog_name="polyconv", standalone_mode=False)
        if code == 130:  # Typer makes this of an interrupt
            raise KeyboardInterrupt
        sys.stdout.flush()
    except BaseException as error:
        if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):  # Typer exits with 1
            return _silenced()
        return _report(KeyboardInterrupt() if interrupts.count else error, as_json="--json" in words)
    return code if isinstance(code, int) else 0


def _silenced() -> int:
    """Success where the reader of stdout has enough, as head -1 does; what is left to write goes nowhere."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _report(error: BaseException, *, as_json: bool) -> int:
    if isinstance(error, SystemExit):
        raise error
    row = next((row for row in _ERRORS if isinstance(error, row[0])), None)
    if row is None:
        sys.stderr.write("".join(traceback.format_exception(error)))
    _, word, code, hint = row or (Exception, "internal", 1, "a defect: please report the lines above")
    show = getattr(error, "format_message", None)  # Typer's own errors
    message = (show() if show else str(error)).strip() or EXIT_CODES[code]
    if as_json:
        render.document({"error": {"code": word, "message": message, "hint": hint}})
    else:
        render.complain(message, hint)
    return code


def _application() -> typer.Typer:
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    app = typer.Typer(
        help="Convolution in every dialect, planned and compiled for this CPU.",
        epilog=f"Results go to stdout, everything else to stderr. Exit codes: {codes}.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    for verb in VERBS:
        if find_spec(f"polyconv.cli.{verb}"):
            app.command(verb)(import_module(f"polyconv.cli.{verb}").command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        render.line(f"polyconv {installed('polyconv') or '(not installed, run from its source)'}")
        raise typer.Exit


def _common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Log to stderr; -vv for more.")
    ] = 0,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; so does NO_COLOR=1.")] = False,
) -> None:
    render.configure(quiet=quiet, color=False if no_color else None)
    if verbose:
        level = logging.INFO if verbose == 1 else logging.DEBUG
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
        logging.getLogger("polyconv").setLevel(level)
