"""The table of planted faults: mistakes as authors make them, each one text of the generator and what replaces it.

There is one at least for every algorithm: an edge, a tail, a phase, a mask, a missing padding, a wrong word, a stale
plan.  It must not import what it names.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.errors import Error

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault.

    Parameters
    ----------
    name : str
    meaning : str
        What goes wrong, in words.
    module : str
        Module of the generator.
    right, wrong : str
        What stands there, once, and what replaces it.
    algorithm : str
        An algorithm that shows it; its forms are searched.  Empty for what only whole graphs show.
    seen_in_check_mode : bool
        Whether memory is touched wrongly: outside a buffer, or before it was written.
    """

    name: str
    meaning: str
    module: str
    right: str
    wrong: str
    algorithm: str
    seen_in_check_mode: bool = True

    def planted_in(self, text: str) -> str:
        """The module's text with the fault.

        Raises
        ------
        Error
            If the text to replace does not stand there exactly once: the generator has changed.
        """
        if text.count(self.right) != 1:
            raise Error(
                f"fault '{self.name}': {self.right!r} stands {text.count(self.right)} times in {self.module}, "
                f"must stand once; bring the row of FAULTS up to date"
            )
        return text.replace(self.right, self.wrong)


_ALGORITHMS, _LOWERING, _KERNELS = "polyconv.algorithms.", "polyconv.lowering.", "polyconv.kernels."

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        # -- what all or many algorithms share
        Fault(
            "tail mask", "the last vector of a row is stored one lane too long",
            _KERNELS + "layout", "k.mask(columns - full, lanes)", "k.mask(columns - full + 1, lanes)", "generic",
        ),
        Fault(
            "full mask", "a mask of all lanes leaves out the last one",
            _KERNELS + "emitter", "self.maximum(self.minimum(count, lanes), 0)\n        ramp",
            "self.maximum(self.minimum(count, lanes - 1), 0)\n        ramp", "pointwise",
        ),
        Fault(
            "one turn too many", "a loop that is tested at its end turns once more",
            _KERNELS + "language", "again = increased < high", "again = increased <= high", "direct",
        ),
        Fault(
            "gathered lane", "the last element that a gather under a mask has to read is the first one again",
            _KERNELS + "language", "step = self.select(mask.count > i, step, 0)",
            "step = self.select(mask.count > i + 1, step, 0)", "depthwise", seen_in_check_mode=False,
        ),
        Fault(
            "scattered lane", "a scatter under a mask writes one element beyond it",
            _KERNELS + "language", "with self.when(mask.count > i):", "with self.when(mask.count >= i):", "depthwise",
        ),
        Fault(
            "bfloat rounding", "sums are cut to bf16, not rounded",
            _KERNELS + "convert", "rounded = bits + 0x7FFF +", "rounded = bits + 0x0001 +", "generic",
            seen_in_check_mode=False,
        ),
        Fault(
            "upper limit", "saturation stops one below the largest number",
            _KERNELS + "convert", "return k.select(value > high, high, value)",
            "return k.select(value > high, high - 1, value)", "generic", seen_in_check_mode=False,
        ),
        Fault(
            "bias offset", "every output channel gets the bias of the next one",
            _KERNELS + "move", "per_channel(bias, kind, c, mask)", "per_channel(bias, kind, c + 1, mask)", "generic",
        ),
        Fault(
            "end edge", "one pixel beyond the end of a line is read instead of padding",
            _LOWERING + "panel", ", extent - first", ", extent - first + 1", "generic",
        ),
        Fault(
            "begin edge", "one pixel before the begin of a line is read instead of padding",
            _LOWERING + "panel", "until = 0 - first", "until = -1 - first", "generic",
        ),
        Fault(
            "outer edge", "one line beyond the end of an outer axis is read instead of padding",
            _LOWERING + "panel", "position.below(record.inp)", "position.below(record.inp + 1)", "generic",
        ),
        Fault(
            "last box", "the box that is cut short at the end of an axis has one output too many",
            _LOWERING + "panel", "record.out - first)", "record.out - first + 1)", "generic",
        ),
        Fault(
            "stride phase", "a phase of a transposed convolution has one output too many",
            _LOWERING + "sweep", "count = (out - o0 + s - 1) // s", "count = (out - o0 + s) // s", "generic",
        ),
        Fault(
            "last tap", "the last tap that meets an input is left out with those that meet only padding",
            _LOWERING + "sweep", "(axis.inp - 1 + axis.pad) // axis.dilation + 1)\n    taps",
            "(axis.inp - 2 + axis.pad) // axis.dilation + 1)\n    taps", "direct", seen_in_check_mode=False,
        ),
        Fault(
            "group offset", "groups of input channels lie one channel too far apart",
            _LOWERING + "boxes", "x_g=r.x.c * group_in", "x_g=r.x.c * (group_in + 1)", "generic",
        ),
        Fault(
            "residual pitch", "rows of the residual lie one element too far apart",
            _LOWERING + "boxes",
            "r_stride=residual.spatial[a] * axis.out_step",
            "r_stride=(residual.spatial[a] + residual.itemsize) * axis.out_step", "generic",
        ),
        Fault(
            "wrong word", "channels of the residual are taken as far apart as those of the input",
            _LOWERING + "boxes", "r_c=residual.c", "r_c=r.x.c", "generic",
        ),
        Fault(
            "stale plan", "a layer takes the program of arrays that lie otherwise",
            "polyconv.prepared", "(a.shape, a.strides) for a in arrays", "(a.shape, a.ndim) for a in arrays",
            "generic", seen_in_check_mode=False,
        ),
        # -- one or more for every algorithm
        Fault(
            "pixel step", "pixels are taken one further apart than the stride",
            _ALGORITHMS + "dense.channel_panel", "pixel_step = c.step *", "pixel_step = (c.step + 1) *", "direct",
        ),
        Fault(
            "last channel", "a block of output channels stores one channel too many",
            _ALGORITHMS + "dense.driver", "p.total_outputs - absolute)", "p.total_outputs - absolute) + 1", "direct",
        ),
        Fault(
            "entry weights", "a tap of a block of channels takes its weights one row too late",
            _ALGORITHMS + "dense.entries", "before + tap * words)",
            "before + tap * words + 1)", "direct",
        ),
        Fault(
            "careful edge", "a weight of Inf meets the padding one pixel beyond the input",
            _ALGORITHMS + "careful", "position.below(record.inp)", "position.below(record.inp + 1)", "careful",
        ),
        Fault(
            "window rows", "rows of windows in a panel begin one pixel late",
            _ALGORITHMS + "product.strassen_panel", "panel + row.index * width * p.pixel_bytes",
            "panel + row.index * (width + 1) * p.pixel_bytes", "strassen", seen_in_check_mode=False,
        ),
        Fault(
            "lost set", "a part of the sets of output channels is rounded down, and the last set never computed",
            _ALGORITHMS + "product.sets", "split_sets=-(-set_count // parts)", "split_sets=max(1, set_count // parts)",
            "pointwise",
        ),
        Fault(
            "second half", "results of the second half of a box leave one pixel early",
            _ALGORITHMS + "product.strassen_driver", "begin = (quarter.index & 1) * half",
            "begin = (quarter.index & 1) * (half - 1)", "strassen", seen_in_check_mode=False,
        ),
        Fault(
            "short tiles", "a row of tiles one output short begins where whole ones do",
            _ALGORITHMS + "winograd.driver", "row.first_short, row.first_full)", "row.first_full, row.first_full)",
            "winograd", seen_in_check_mode=False,
        ),
        Fault(
            "tile bottom", "a row of tiles reads one line beyond the input",
            _ALGORITHMS + "winograd.columns", "k.minimum(y.inp - first, SCHEME.n)",
            "k.minimum(y.inp - first + 1, SCHEME.n)", "winograd_rows",
        ),
        Fault(
            "point at infinity", "whole columns leave out the products at infinity, as short ones do",
            _ALGORITHMS + "winograd.groups", "box.lines_out(0) < SCHEME.m, 1, 0)",
            "box.lines_out(0) <= SCHEME.m, 1, 0)", "winograd_groups",
        ),
        Fault(
            "turning back", "factors of the transform turn the other way",
            _ALGORITHMS + "fourier.program", "angle = -2 * np.pi * np.outer", "angle = 2 * np.pi * np.outer", "fft",
            seen_in_check_mode=False,
        ),
        Fault(
            "segment begin", "a segment that begins in the padding reads one element before the line",
            _ALGORITHMS + "fourier.driver", "k.select(at < 0, (step - 1 - at) >> (step - 1), 0)",
            "k.select(at < 0, (step - 1 - at - step) >> (step - 1), 0)", "fft",
        ),
        Fault(
            "open window", "rows whose window ends one line beyond the input are computed without a guard",
            _ALGORITHMS + "depthwise.slide_driver", "+ p.reach) < slid.inp)", "+ p.reach) <= slid.inp)", "depthwise",
        ),
        Fault(
            "open block", "a block that ends one column beyond the input is computed without a guard",
            _ALGORITHMS + "depthwise.block", "(right < columns.inp)", "(right <= columns.inp)", "depthwise_block",
            seen_in_check_mode=False,
        ),
        Fault(
            "line begin", "a tile that begins one element before the line reads it in place",
            _ALGORITHMS + "depthwise.line", "in_line = (at >= 0)", "in_line = (at >= -1)", "depthwise_line",
        ),
        Fault(
            "last copied row", "the last row that windows of an item meet is not copied",
            _ALGORITHMS + "depthwise.last_driver", "(p.high + 1), p.x.extent)", "p.high, p.x.extent)",
            "depthwise_last", seen_in_check_mode=False,
        ),
        Fault(
            "plane tail", "the last channels of an item are as many as the others",
            _ALGORITHMS + "depthwise.plane", "first, k.minimum(p.together, end - first), item",
            "first, p.together, item", "depthwise_plane",
        ),
        Fault(
            "block tail", "the last block of groups stores all lanes",
            _ALGORITHMS + "grouped.in_place", "(min(used, p.c), (p.c - 1) % used + 1)", "(min(used, p.c),)", "in_place",
        ),
        Fault(
            "edge taps", "a tap that lies one pixel beyond the input counts as one inside",
            _LOWERING + "bands", "(axis.inp - 1 - at) // axis.dilation + 1", "(axis.inp - at) // axis.dilation + 1",
            "in_place",
        ),
        Fault(
            "plane mask", "a row's mask lets in one pixel beyond its end",
            _ALGORITHMS + "grouped.in_planes", "min(lane, last.inp - of_load)", "min(lane, last.inp - of_load + 1)",
            "in_planes",
        ),
        Fault(
            "long tile", "the last tile of a line has as many pixels as the others",
            _ALGORITHMS + "grouped.channel_sums", "times = (length - first) // pixels",
            "times = -(-(length - first) // pixels)", "channel_sums",
        ),
        Fault(
            "copied run", "of the copy of a row's begin the last pixel is missing",
            _ALGORITHMS + "dense.runs", "(last.taps - 1) * last.dilation + 1 if low else 0",
            "(last.taps - 1) * last.dilation if low else 0", "stem",
        ),
        Fault(
            "run of none", "a row without taps is a run of none, which a tile turns at least once",
            _ALGORITHMS + "dense.runs", "last.dilation == 1 and last.taps:", "last.dilation == 1:", "stem",
            seen_in_check_mode=False,
        ),
        Fault(
            "woven end", "a woven row has one result too many",
            _ALGORITHMS + "woven.driver", "p.last_out - begin)", "p.last_out - begin + 1)", "woven",
        ),
        Fault(
            "chunk weights", "the next chunk of input channels goes on one tap too late in the weights",
            _LOWERING + "pixels", "rows * chunk * taps * size", "rows * (chunk * taps + 1) * size", "generic",
        ),
        # -- small integers
        Fault(
            "padded bytes", "of the pixels beyond the end of a line the last is not filled",
            _ALGORITHMS + "dots.panel", "(count - end) * lines.pixel_bytes, padding",
            "(count - end - 1) * lines.pixel_bytes, padding", "dots",
        ),
        Fault(
            "last bytes", "the last channels of a pixel are stored one too many",
            _KERNELS + "dots_grouped", "k.mask(g.last, together * lanes)", "k.mask(g.last + 1, together * lanes)",
            "dots_grouped",
        ),
        Fault(
            "woven taps", "weights of lines and columns are taken for each other",
            _ALGORITHMS + "dots.depthwise", "w.reshape(count, times, lines, taps)",
            "w.reshape(count, times, taps, lines).swapaxes(2, 3)", "dots_depthwise", seen_in_check_mode=False,
        ),
        Fault(
            "tables once", "biases and scales of a pixel's outputs are not repeated for the next pixel",
            _ALGORITHMS + "dots.weights", "of_groups[:, np.arange(lane) % outputs]",
            "of_groups[:, np.minimum(np.arange(lane), outputs - 1)]", "dots_inner", seen_in_check_mode=False,
        ),
        Fault(
            "line before", "where lines that taps meet have a stride, those of one residue begin a line late",
            _ALGORITHMS + "dots.lines", "k.maximum(stride - 1 - origin, 0)", "k.maximum(stride - origin, 0)",
            "dots_lines", seen_in_check_mode=False,
        ),
        Fault(
            "rows between", "a register of the matrix unit that begins within a row of outputs begins with the row",
            _ALGORITHMS + "dots.matrix_driver", "source + (pixel - at) * p.row_step", "source - at * p.row_step",
            "dots_matrix", seen_in_check_mode=False,
        ),
        Fault(
            "tiles of others", "tiles of the matrix unit of a second kind are taken to begin with the first of all",
            _ALGORITHMS + "dots.matrix_pixels", "TileStretch(before * size, count, kind)",
            "TileStretch(0, count, kind)", "dots_matrix_pixels", seen_in_check_mode=False,
        ),
        Fault(
            "entries of others", "weights of a window's channels are taken for those of its taps",
            _ALGORITHMS + "dots.pixels", "for plane in planes for at in taps]", "for at in taps for plane in planes]",
            "dots_patches", seen_in_check_mode=False,
        ),
        Fault(
            "words of others", "weights of a block's output channels are taken for those of its words",
            _ALGORITHMS + "dots.weights", ".transpose(0, 1, 5, 3, 2, 4)", ".transpose(0, 1, 5, 2, 3, 4)", "dots_pixels",
            seen_in_check_mode=False,
        ),
        Fault(
            "cut tile", "tiles that are cut short at the end of a box are left out",
            _ALGORITHMS + "winograd.integers", "return (outputs + (TILE - 1)) // TILE", "return outputs // TILE",
            "winograd_dots",
        ),
        Fault(
            "tap offset", "a deformed sample takes its horizontal offset from the next tap",
            _ALGORITHMS + "deformable.driver", "tap * 2 + 1, line", "tap * 2 + 3, line", "deformable",
        ),
        # -- whole graphs
        Fault(
            "early place", "the place of what lies between two steps is free before the last of them has read it",
            "polyconv.models.places", "_Life(was.first, now.last, (",
            "_Life(was.first, max(was.first, now.last - 1), (", "",
            seen_in_check_mode=False,
        ),
        Fault(
            "kept address", "a replay reads the inputs of the run that it was made by",
            "polyconv.models.replay", "address(values[name]) - offset",
            "(operands[word] or address(values[name]) - offset)", "", seen_in_check_mode=False,
        ),
    )
}  # fmt: skip
"""By name."""
