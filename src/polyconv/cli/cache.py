"""``polyconv cache info | clear``: the compiled kernels on disk, and what is known of models.

Only files with the names that polyconv gives them count; nothing else in the folder is
touched, whatever POLYCONV_CACHE_DIR may point at.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from polyconv.cli import render
from polyconv.cli.options import AsJson
from polyconv.settings import resolve, spelled_bytes

__all__ = ["command"]

_NAME = re.compile(r"[0-9a-f]{64}\.(?:o|model|plans|made|runs)")


def command(
    action: Annotated[Literal["info", "clear"], typer.Argument(help="Show the cache, or delete its files.")],
    as_json: AsJson = False,
) -> None:
    """Show or clear the compiled kernels on disk, and what is known of models."""
    folder: Path = resolve("cache_dir")
    files = _files(folder)
    sizes = [file.stat().st_size for file in files]
    kernels = sum(file.suffix == ".o" for file in files)
    if action == "clear":
        for file in files:
            file.unlink(missing_ok=True)
        if as_json:
            facts = {"folder": folder, "deleted": len(files), "bytes": sum(sizes)}
            render.document({"command": "cache", **facts})
        else:
            of_models = len(files) - kernels
            said = f"deleted {kernels} kernels and {of_models} files of models, {spelled_bytes(sum(sizes))}"
            render.line(f"{said}, from {folder}")
        return
    ages = [(time.time() - file.stat().st_mtime) / 86400 for file in files]
    kept = {
        "folder": folder,
        "kernels": kernels,
        "files of models": len(files) - kernels,
        "bytes": sum(sizes),
        "oldest": max(ages, default=None),
        "newest": min(ages, default=None),
    }
    if as_json:
        render.document({"command": "cache", **kept, "unit of ages": "days"})
        return
    shown = {**kept, "bytes": spelled_bytes(sum(sizes))}
    shown |= {name: f"{kept[name]:.1f} days" for name in ("oldest", "newest") if kept[name] is not None}
    render.facts("compiled kernels", shown)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    named = (file for file in folder.iterdir() if _NAME.fullmatch(file.name))
    return sorted(file for file in named if file.is_file() and not file.is_symlink())
