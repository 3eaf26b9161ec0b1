"""Writes docs/settings.md from the table in polyconv.settings: ``python tools/settings_page.py``."""

from __future__ import annotations

from pathlib import Path

from polyconv.settings import SETTINGS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD = """\
# Settings

<!-- Made by tools/settings_page.py from the table in src/polyconv/settings.py: edit there. -->

What counts, from the strongest to the weakest: the argument of a call, the innermost
`with polyconv.settings(...)` block, the environment variable, the default. A variable that is empty
counts as unset. A value that cannot be read is an `ArgumentError` that names where it stood.

```python
import polyconv

with polyconv.settings(threads=1, accuracy="strict"):
    ...
```

| setting | variable | values | default | what it does |
|---|---|---|---|---|
"""

FOOT = """
Settings marked * belong to the process: they have a variable only.
"""


def page() -> str:
    """The page's text."""
    rows = []
    for row in SETTINGS.values():
        name = f"`{row.name}`" + ("" if row.per_call else " *")
        variables = ", then ".join(f"`{variable}`" for variable in row.variables)
        rows.append(f"| {name} | {variables} | {row.values} | {row.otherwise} | {row.meaning} |\n")
    return HEAD + "".join(rows) + FOOT


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
