"""The tables of ``polyconv bench --smoke``: start-up, calls, loading, planning, six dense layers, random problems.

A minute's look at one installation, without other engines; floors it should keep stand beside the figures.
"""

from __future__ import annotations

from typing import Any

from polyconv.benchmark import draws, load, planning, shares, smoke
from polyconv.benchmark.peaks import copy_bandwidth, peak
from polyconv.cli import render
from polyconv.cli.shares import table_of_worst
from polyconv.settings import resolve
from polyconv.target import target

__all__ = ["show"]

_FLOOR_ROWS = 10


def show(problems: int, seed: int, algorithm: str, *, as_json: bool) -> None:
    """Measure, and write tables or one document.

    Parameters
    ----------
    problems, seed : int
        How many random problems the floor is searched on, and their seed.
    algorithm : str
        Whose floor it is.
    """
    here = target(resolve("target"))
    starts, calls, compiled = smoke.start_times(), smoke.call_times(), smoke.compile_times()
    loads = [load.load_times(load.network(repeated=repeated)) for repeated in (False, True)]
    sizes = load.sizes()
    with render.progress("planning") as advance:
        planned = [0]

        def kind(_: object) -> None:
            planned[0] += 1
            advance(planned[0], 2 * len(planning.KINDS))

        plans = planning.planning_times(seed=seed, progress=kind)
    with render.progress("layers") as advance:
        done = [0]

        def layer(_: object) -> None:
            done[0] += 1
            advance(done[0])

        layers = smoke.layer_speeds(layer)
    with render.progress("random problems") as advance:
        seen = [0]

        def one(_: object) -> None:
            seen[0] += 1
            advance(seen[0], problems)

        found = shares.measured(draws.problems(problems, seed), here, algorithm, progress=one)
    peaks = {name: peak(here, name) for name in ("f32", "f64", "i32", "i64")}
    if as_json:
        render.document(
            {
                "command": "bench", "start": starts, "call": calls, "compile_seconds": compiled, "load": loads,
                "sizes": sizes, "planning": plans, "layers": layers,
                "peaks_gflops": peaks, "copy_bytes_per_second": copy_bandwidth(),
                "floor": [shares.plain(s) for s in found],
            }
        )  # fmt: skip
        return
    slowest = max(compiled.values())
    render.table("start and call", ("what", "measured", "floor"), [
        ("import, beyond NumPy", f"{1e3 * starts.imported:.1f} ms", "100 ms"),
        ("first result, empty object cache", f"{1e3 * starts.first_cold:.0f} ms", "1000 ms"),
        ("first result, warm object cache", f"{1e3 * starts.first_warm:.0f} ms", "150 ms"),
        ("call of a tiny layer, with out", f"{1e6 * calls.with_out:.2f} us", "1 us"),
        ("call of a tiny layer, without out", f"{1e6 * calls.without_out:.2f} us", "1.5 us"),
        ("call of conv with the weights of calls before", f"{1e6 * calls.with_weights:.0f} us", "100 us"),
        *(row for times in loads for row in _loading(times)),
        (f"compile events of a layer that saw {sizes.images} image sizes", f"{sizes.events}", "3"),
        ("growth of the process meanwhile, after the first image", f"{sizes.grown / 2**20:.1f} MiB", "32 MB"),
        (f"compile time, slowest of {len(compiled)} kernels", f"{1e3 * slowest:.0f} ms", "50 ms"),
        ("compile time, all kernels of the six layers", f"{1e3 * sum(compiled.values()):.0f} ms", ""),
    ])  # fmt: skip
    _planning(plans)
    render.line(", ".join(f"{name} {value:.0f} GFLOP/s" for name, value in peaks.items())
                + f" peak of one core ({here.level}); copy {copy_bandwidth() / 1e9:.0f} GB/s")  # fmt: skip
    columns = ("layer", "layout", "target", "algorithm", "us", "GFLOP/s", "of its peak", "of f32 peak")
    render.table("f32, one thread", columns, [_row(row) for row in layers])
    render.line(f"{algorithm} on random problems, as shares of what the CPU allows")
    table_of_worst(found, _FLOOR_ROWS)


def _loading(times: load.LoadTimes) -> tuple[tuple[str, str, str], ...]:
    name = f"loading {times.layers} convolutions of ResNet-50"
    return (
        (f"{name}, empty object cache", f"{1e3 * times.cold:.0f} ms", "3000 ms"),
        (f"{name}, warm object cache", f"{1e3 * times.warm:.0f} ms", "300 ms"),
        ("importing what layers need, before that", f"{1e3 * times.importing:.0f} ms", ""),
    )


def _planning(plans: list[planning.PlanningTimes]) -> None:
    columns = ("layer", "layout", "first plan", "program", "new size", "p99", "compiling")
    rows = [
        (row.kind, row.layout, *(f"{1e3 * seconds:.2f} ms" for seconds in (row.first, row.program, row.size,
                                                                          row.size_p99)), row.compiling)
        for row in plans
    ]  # fmt: skip
    render.table(f"planning; a known layer meets {plans[0].sizes} new sizes", columns, rows)
    worst = {
        "first plan": (max(row.first for row in plans), 5), "new size": (max(row.size for row in plans), 1),
        "p99": (max(row.size_p99 for row in plans), 3),
    }  # fmt: skip
    render.line("slowest: " + ", ".join(f"{name} {1e3 * seconds:.2f} ms (floor {aim} ms)"
                                        for name, (seconds, aim) in worst.items()))  # fmt: skip


def _row(row: smoke.LayerSpeed) -> tuple[Any, ...]:
    return (
        row.name, row.layout, row.level, row.algorithm, f"{1e6 * row.seconds:.0f}", f"{row.gflops:.0f}",
        f"{row.share:.0%}", f"{row.share_of_machine:.0%}",
    )  # fmt: skip

