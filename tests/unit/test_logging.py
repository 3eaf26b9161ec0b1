"""POLYCONV_VERBOSE: what it names is logged, and nothing else."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import polyconv


@pytest.mark.parametrize(("words", "heard"), [("", set()), ("plan", {"plan"}), ("exec,dispatch", {"exec", "dispatch"})])
def test_verbose_names_what_is_logged(
    words: str, heard: set[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POLYCONV_VERBOSE", words)
    layer = polyconv.Conv(np.ones((8, 8, 3, 3), np.float32), pads=1)
    with caplog.at_level(logging.INFO, "polyconv"):
        for _ in range(3):
            layer(np.ones((1, 8, 6, 6), np.float32))
    records = [record.getMessage() for record in caplog.records]
    assert {message.split()[0] for message in records} == heard
    assert all("conv f32 NCHW n1 c8 i6x6 m8 k3x3 p1" in message for message in records)
    assert sum(message.startswith("exec") for message in records) == (3 if "exec" in heard else 0)
