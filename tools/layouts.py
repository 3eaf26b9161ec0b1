"""Networks in both orders of axes: ``python3 tools/layouts.py MODEL...``.

Runs with the axes of the model and with channels last alternate in one process, so that what slows the machine down
slows both; a ratio is the time in the order of the model over that with channels last, the median of all pairs.  It
prints a table in Markdown, with what the prices choose.  Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from polyconv.benchmark.summary import geometric_mean
from polyconv.cli.feeds import feeds
from polyconv.models.session import InferenceSession


def main(arguments: list[str]) -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, per network")
    given = parser.parse_args(arguments)
    print(f"| network | ms, order of the model | ms, channels last | ratio | chosen |\n{'|---' * 5}|", flush=True)
    ratios = []
    for path in given.models:
        planes, pixels, ratio, chosen = compared(path, given.threads, given.seconds)
        ratios.append(ratio)
        row = path.stem, f"{1e3 * planes:.2f}", f"{1e3 * pixels:.2f}", f"{ratio:.3f}", chosen
        print("| " + " | ".join(row) + " |", flush=True)
    print(f"| geometric mean | | | {geometric_mean(ratios):.3f} | |")
    return 0


def compared(path: Path, threads: int, seconds: float) -> tuple[float, float, float, str]:
    """Medians of both orders, the median of their ratios, and which one a session would take."""
    sessions = [InferenceSession(path, threads=threads, layout=layout) for layout in ("model", "channels_last", "auto")]
    given = {name: feed.array for name, feed in feeds(sessions[0].get_inputs(), (), {}, 0).items()}
    for session in sessions:
        for _ in range(3):
            session.run(None, given)
    problems = [step.problem or "" for step in sessions.pop().steps]
    times: list[list[float]] = [[], []]
    end = perf_counter() + seconds
    while perf_counter() < end or len(times[0]) < 5:
        for session, found in zip(sessions, times, strict=True):
            session.run(None, given)  # which finds its own in the caches then
            start = perf_counter()
            session.run(None, given)
            found.append(perf_counter() - start)
    ratio = median(a / b for a, b in zip(*times, strict=True))
    chosen = "channels last" if any(" NHWC " in problem for problem in problems) else "model"
    return median(times[0]), median(times[1]), ratio, chosen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
