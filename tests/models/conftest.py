"""What tests of runs that a process leaves have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polyconv
from polyconv import cache
from polyconv.models.program import Program


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, in which runs are kept."""
    folder = cache.cache_folder()
    polyconv.wisdom.forget()  # what other tests have measured
    monkeypatch.delenv("POLYCONV_KEPT_RUNS")
    cache.use_folder(tmp_path / "cache")
    yield
    cache.use_folder(folder)


@pytest.fixture
def by_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for every run that goes by steps."""
    right, found = Program._by_steps, list[int]()

    def counted(self: Program, *given: Any) -> Any:
        found.append(len(found))
        return right(self, *given)

    monkeypatch.setattr(Program, "_by_steps", counted)
    return found
