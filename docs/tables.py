"""Tables that follow from the package: operators of the dialects, options of the command, plans by preset.

They are made when the site is built, so they cannot say something else than the package does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from polyconv import dialects
from polyconv.cli import VERBS
from polyconv.cli.machine import plans
from polyconv.machine.profile import presets
from polyconv.models.onnx_rules import LATE_RULES, ON_CPU, RULES


def write(folder: Path) -> None:
    """Write every table as a page of Markdown that others include."""
    folder.mkdir(exist_ok=True)
    (folder / "command-line.md").write_text("\n".join(_verbs()), encoding="utf-8")
    (folder / "plans.md").write_text("\n".join(_plans()), encoding="utf-8")
    (folder / "rewrites.md").write_text("\n".join(_rewrites()), encoding="utf-8")
    for name in dialects.__all__:
        (folder / f"operators-{name}.md").write_text("\n".join(_operators(name)), encoding="utf-8")


def _table(head: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {head} |"
    yield f"|{'---|' * (head.count('|') + 1)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _rewrites() -> Iterator[str]:
    rows = ((str(rule.apply.__doc__).partition("\n")[0].replace("``", "`").rstrip("."),
             "kept" if rule.is_exact else "may change") for rule in (*RULES, *ON_CPU, *LATE_RULES))  # fmt: skip
    yield from _table("before -> after | bits of results", rows)


# -- the command line -------------------------------------------------------------------------------------


def _verbs() -> Iterator[str]:
    plain = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    for verb in VERBS:
        command = [sys.executable, "-m", "polyconv", verb, "--help"]
        done = subprocess.run(command, env=plain, capture_output=True, text=True, check=True)
        yield f"## polyconv {verb}\n"
        lines = (line.rstrip() for line in done.stdout.splitlines())
        yield from ("```text", *(line for line in lines if line), "```", "")


# -- plans by preset --------------------------------------------------------------------------------------


def _plans() -> Iterator[str]:
    rows = ((f"`{text}`", *by_preset.values()) for text, by_preset in plans())
    yield from _table(f"layer | {' | '.join(presets())}", rows)


# -- the operators ----------------------------------------------------------------------------------------


def _operators(name: str) -> Iterator[str]:
    module = getattr(dialects, name)
    for factory in (getattr(module, name) for name in dir(module)):
        rows = getattr(factory, "rows", None)
        if rows is None:  # a table or a function of the module
            continue
        newest = rows[0]
        yield f"### {name}.{factory.name}\n"
        versions = ", ".join(str(version) for version in sorted({row.version for row in rows}))
        inputs = ", ".join(f"[{i.name}]" if i.optional else i.name for i in newest.inputs)
        domains = " and ".join(sorted({f"`{row.domain}`" if row.domain else "main" for row in rows}))
        yield f"Domain {domains}; versions {versions}; inputs {inputs} (those in brackets may be left out).\n"
        defaults = {key: "" if a.default is None else f"`{a.default!r}`" for key, a in newest.attributes.items()}
        yield from _table("attribute | default", ((f"`{key}`", words) for key, words in defaults.items()))
        types = ((key, ", ".join(f"`{word}`" for word in words)) for key, words in newest.types.items())
        yield from _table("type | element types", ([_of(newest, key), words] for key, words in types))


def _of(row: Any, type_name: str) -> str:
    return ", ".join(i.name for i in row.inputs if i.type == type_name) or type_name
