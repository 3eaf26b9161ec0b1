"""Every public name has examples in its docstring, and they give what they show."""

from __future__ import annotations

import doctest
import importlib
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

import polyconv
from polyconv import dialects, ndimage, wisdom

WISDOM = ("entries", "export", "forget", "import_", "merge", "path", "save")
"""What docs/tuning.md has of the module; the rest is for the planner."""

PUBLIC: dict[str, Any] = {
    **{f"polyconv.{name}": getattr(polyconv, name) for name in polyconv.__all__},
    **{f"polyconv.ndimage.{name}": getattr(ndimage, name) for name in ndimage.__all__},
    **{f"polyconv.wisdom.{name}": getattr(wisdom, name) for name in WISDOM},
}


def needs_none(made: Any) -> bool:
    """Errors and enumerations are shown by docs/reference/errors.md and sessions.md, modules by their functions."""
    is_word = isinstance(made, type) and issubclass(made, BaseException | Enum)
    return is_word or (isinstance(made, ModuleType) and made is not dialects)


@pytest.mark.parametrize("name", [name for name, made in PUBLIC.items() if not needs_none(made)])
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_WISDOM", "off")  # examples may set it
    made = PUBLIC[name]
    module = importlib.import_module(getattr(made, "__module__", name))
    # without the names of the module: an example imports what it uses
    found = doctest.DocTestFinder(recurse=False).find(made, name, module=module, globs={})
    runner = doctest.DocTestRunner()
    assert sum(len(test.examples) for test in found) > 0
    for test in found:
        runner.run(test)
    assert not runner.failures
