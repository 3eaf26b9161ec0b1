"""The names by which families of operators are found before they are imported are those that they know."""

from __future__ import annotations

from importlib import import_module

import pytest

from polyconv.operators.table import BY_FAMILY


@pytest.mark.parametrize("family", ["moving.moving", "normalisation.normalisation", "pooling.pooling",
                                    "reduction.reduction"])  # fmt: skip
def test_a_family_knows_the_operators_that_it_is_asked_for(family: str) -> None:
    module = import_module(f"polyconv.operators.{family.partition('.')[0]}")
    assert sorted(module._TABLE) == sorted(BY_FAMILY[family])
