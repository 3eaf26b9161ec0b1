"""Public docstrings: every parameter is described, there or where the docstring says."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from typing import Any

import pytest

import polyconv

OTHERS = {"conv_transpose": ("conv",), "ConvTranspose": ("Conv", "conv_transpose")}
"""Who describes the parameters that a docstring leaves out, as its text says."""

PUBLIC = {name: getattr(polyconv, name) for name in polyconv.__all__}
CALLABLES = [
    name
    for name, made in PUBLIC.items()
    if callable(made) and not (isinstance(made, type) and issubclass(made, Exception | Enum))
]


def described(made: Any) -> set[str]:
    """Names before a colon, or alone, in the section of parameters."""
    text = inspect.getdoc(made) or ""
    section = re.split(r"\n\w+\n-+\n", text.partition("Parameters\n----------\n")[2])[0]
    lines = [line for line in section.splitlines() if line and not line.startswith(" ")]
    return {name.strip(" *") for line in lines for name in line.split(" : ")[0].split(",")}


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_described(name: str) -> None:
    made, found = PUBLIC[name], described(PUBLIC[name])
    for other in OTHERS.get(name, ()):
        assert f"``{other}``" in made.__doc__
        found |= described(PUBLIC[other])
    assert {p for p in inspect.signature(made).parameters if not p.startswith("_")} <= found
