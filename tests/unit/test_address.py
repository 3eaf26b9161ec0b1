"""Where arrays lie, as NumPy tells it, whichever way it is asked."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from polyconv.kernels import address as asked
from polyconv.kernels.address import address


class _Other(np.ndarray):
    """An array of a caller's own class."""


@pytest.mark.parametrize("is_there", [True, False])
def test_it_is_what_numpy_says(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "_IS_THERE", asked._IS_THERE and is_there)
    whole = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    views = (
        whole, whole[1:], whole[::-1, :, ::2], whole.T, whole[2, 3, 4:], whole[:0], whole.view(_Other), np.array(3),
        np.broadcast_to(np.zeros(()), (2, 3)), np.frombuffer(b"12345678", np.uint8, offset=3), np.ma.ones(3),
    )  # fmt: skip
    for a in views:
        assert address(a) == a.ctypes.data
    assert address(whole[1:]) - address(whole) == whole.strides[0]


def test_the_short_way_is_taken_where_it_is_known() -> None:
    is_known = sys.implementation.name == "cpython" and sys.maxsize > 1 << 32 and object.__basicsize__ == 16
    assert is_known == asked._IS_THERE
