"""``polyconv wisdom``: the measured choices in the user's file: shown, brought in and out, merged, forgotten.

What counts as wisdom, and which of two entries wins, is decided in ``polyconv.wisdom``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from polyconv import wisdom
from polyconv.benchmark.sets import pattern_of
from polyconv.cli import render
from polyconv.cli.options import AsJson, usage
from polyconv.errors import Error
from polyconv.planning.wisdom_file import Entry, read, write

__all__ = ["command"]

_COLUMNS = ("problem", "cpu", "target", "accuracy", "algorithm", "us", "candidates", "rigor", "remark")

_FILES = {"show": (0, 1), "path": (0, 0), "export": (1, 1), "import": (1, 99), "merge": (1, 99), "forget": (0, 0)}
"""How many files an action takes."""


def command(
    action: Annotated[
        Literal["show", "path", "export", "import", "merge", "forget"],
        typer.Argument(help="Show the user's file or another; write it to FILE, take FILEs in, "
                       "merge FILEs, forget entries."),
    ],
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...")] = None,
    into: Annotated[Path | None, typer.Option("--into", metavar="FILE", help="With merge: the file to write.")] = None,
    match: Annotated[
        str | None, typer.Option("--match", metavar="REGEX", help="With show and forget: only such problems.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With forget: do not ask.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show, export, import, merge or forget measured choices."""
    named = list(files or ())
    least, most = _FILES[action]
    if not least <= len(named) <= most:
        wanted = f"{least} files" if least == most else f"at least {least}" if least else f"at most {most}"
        raise typer.BadParameter(f"wisdom {action} takes {wanted}, not {len(named)}")
    if (into is not None) != (action == "merge"):
        raise typer.BadParameter("merge needs --into FILE" if into is None else "--into belongs to merge")
    if match is not None and action not in ("show", "forget"):
        raise typer.BadParameter("--match belongs to show and forget")
    if action == "forget" and not yes:
        _ask(match)
    done = _ACTIONS[action](named, into, match)
    if as_json:
        render.document({"command": "wisdom", "action": action, **done})
    elif action == "show":
        _show(done["entries"], done["file"])
    else:
        render.line(done["said"])


def _ask(match: str | None) -> None:
    """Ask whether to forget; where nobody can answer, refuse."""
    own = _own()
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"forget deletes measured choices in {own}; nobody is there to be asked: say --yes")
    what = "everything" if match is None else f"what --match {match!r} finds"
    typer.confirm(f"Forget {what} in {own}?", abort=True, err=True)


def _own() -> Path:
    file = wisdom.path()
    if file is None:
        raise typer.BadParameter("POLYCONV_WISDOM is off: there is no file")
    return file


def _of_file(file: Path | None) -> tuple[Entry, ...]:
    """Entries of a file; of the user's, which may not exist yet, if none is given."""
    if file is not None:
        return read(file)
    own = _own()
    return read(own, private=True) if own.exists() else ()


def _shown(files: Sequence[Path], _: Path | None, match: str | None) -> dict[str, Any]:
    file = files[0] if files else None
    pattern = usage(pattern_of, match)
    found = [e for e in _of_file(file) if pattern.search(e.problem)]
    return {"file": file or _own(), "entries": [_facts(entry) for entry in found]}


def _facts(entry: Entry) -> dict[str, Any]:
    return {**{f.name: getattr(entry, f.name) for f in fields(entry)}, "outdated": wisdom.outdated(entry)}


def _path(*_: Any) -> dict[str, Any]:
    file = wisdom.path()
    return {"file": file, "said": "off" if file is None else str(file)}


def _export(files: Sequence[Path], *_: Any) -> dict[str, Any]:
    found = _of_file(None)
    write(files[0], found)
    return {"file": files[0], "count": len(found), "said": f"{len(found)} entries written to {files[0]}"}


def _import(files: Sequence[Path], *_: Any) -> dict[str, Any]:
    own = _own()
    found = [entry for file in files for entry in wisdom.import_(file)]
    if wisdom.save() is None:
        raise Error(f"{own} could not be written")
    usable = sum(wisdom.outdated(entry) is None for entry in found)
    for remark in sorted({remark for entry in found if (remark := wisdom.outdated(entry)) is not None}):
        render.note(f"not used here: {remark}")
    said = f"{len(found)} entries taken into {own}, {usable} of use here"
    return {"file": own, "count": len(found), "usable": usable, "said": said}


def _merge(files: Sequence[Path], into: Path | None, _: str | None) -> dict[str, Any]:
    assert into is not None
    count = wisdom.merge(files, into)
    return {"file": into, "count": count, "said": f"{count} entries written to {into}"}


def _forget(_: Sequence[Path], __: Path | None, match: str | None) -> dict[str, Any]:
    own = _own()
    if match is None:  # whatever it holds
        count = None
        own.unlink(missing_ok=True)
        said = f"deleted {own}"
    else:
        pattern = usage(pattern_of, match)
        found = _of_file(None)
        kept = [entry for entry in found if not pattern.search(entry.problem)]
        count = len(found) - len(kept)
        if count:
            write(own, kept)
        said = f"forgot {count} of {len(found)} entries in {own}"
    return {"file": own, "count": count, "said": said}


_ACTIONS = {"show": _shown, "path": _path, "export": _export, "import": _import, "merge": _merge, "forget": _forget}


def _show(found: Sequence[dict[str, Any]], file: Path) -> None:
    rows = [
        (
            e["problem"], e["cpu"], e["target"],
            e["accuracy"] + ("" if e["finite"] else ", non-finite weights")
            + ("" if e["workspace_limit"] is None else f", {e['workspace_limit']} B"),
            e["algorithm"], None if (t := e["seconds"].get(e["algorithm"])) is None else f"{1e6 * t:,.1f}",
            " ".join(sorted(e["seconds"], key=e["seconds"].__getitem__)), e["rigor"], e["outdated"] or "",
        )
        for e in found
    ]  # fmt: skip
    render.table(str(file), _COLUMNS, rows, "us")
    usable = sum(e["outdated"] is None for e in found)
    render.line(f"{len(found)} entries, {usable} of use here")
