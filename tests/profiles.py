"""Machine profiles for tests: the one in force, with some numbers changed, as a file that POLYCONV_PROFILE can name."""

from __future__ import annotations

from pathlib import Path

from polyconv.machine.host import profile_in_force
from polyconv.machine.profile import spelled


def changed(file: Path, **numbers: str) -> Path:
    """Write the profile in force to a file, with other texts for some numbers (``avx2__loads`` is avx2.loads)."""
    others = {key.replace("__", "."): value for key, value in numbers.items()}
    rows = []
    for row in spelled(profile_in_force()).splitlines():
        key = row.split(" = ")[0]
        rows.append(f"{key} = {others.pop(key)}" if key in others else row)
    assert not others, f"the profile has no {', '.join(others)}"
    file.write_text("\n".join(rows) + "\n")
    return file
