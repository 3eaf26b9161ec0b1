"""How arrays lie, asked of arrays that nobody reads: what would be copied is not."""

from __future__ import annotations

import numpy as np
import pytest

from polyconv.operators.lying import channels_last, lies, lies_like, like, packed, reshaped


@pytest.mark.parametrize("shape", [(2, 6, 20), (2, 3, 2, 20), (2, 6, 4, 5), (2, 120), (240,)])
def test_an_array_in_another_shape_lies_as_a_view_or_as_new_memory(shape: tuple[int, ...]) -> None:
    for lie in (packed((2, 6, 4, 5), np.float32), channels_last((2, 6, 4, 5), np.float32)):
        seen = reshaped(like(lie), shape)
        real = np.zeros(lie.size, np.uint8).view(np.float32)
        right = np.lib.stride_tricks.as_strided(real, lie.shape, lie.strides).reshape(shape)
        assert lies_like(lies(seen), lies(right)) and seen.dtype == right.dtype
        assert seen.flags.owndata == (not np.shares_memory(right, real))


def test_nothing_is_copied_of_what_nobody_reads() -> None:
    """A copy would write pages of memory, which the system gives only then."""
    resource = pytest.importorskip("resource", reason="the system does not tell a process its peak")
    lie = channels_last((64, 64, 128, 128), np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    y = reshaped(like(lie), (64, 8, 8 * 128 * 128))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert y.shape == (64, 8, 8 * 128 * 128) and grown * 1024 < lie.size // 8
