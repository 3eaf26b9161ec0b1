"""What ``bench`` and ``tune`` are given: problems, files of them, models and layer sets, as cases.

A model is run once, on what ``run`` would feed it, because sizes inside it may depend on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from polyconv.benchmark import sets
from polyconv.cli.options import session, subject, usage, within

__all__ = ["Level", "Match", "Sets", "Targets", "cases_of"]

_MODELS = (".onnx", ".xml")

Targets = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TARGET]...", help="Problems, files of problems (one a line), .onnx or .xml files."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME",
        help=f"Layers of published networks; may be repeated: all, {', '.join(sets.layer_sets())}.",
    ),
]  # fmt: skip
Match = Annotated[str | None, typer.Option("--match", metavar="REGEX", help="Only lines in which it is found.")]
Level = Annotated[
    Literal["avx512", "avx2", "baseline", "neon"] | None,
    typer.Option("--target", help="Restrict to these instructions; bench leaves out engines that cannot be."),
]


def cases_of(
    targets: Sequence[str], names: Sequence[str], inputs: Sequence[str] | None = None,
    dim: Sequence[str] | None = None, semantics: str = "onnx", seed: int = 0,
) -> list[sets.Case]:  # fmt: skip
    """Everything that was named, in the order of the command line.

    Parameters
    ----------
    targets, names : sequence of str
        Targets and layer sets.
    inputs, dim, semantics, seed
        Of models, as for ``run``.
    """
    cases: list[sets.Case] = []
    for word in targets:
        if word.endswith(".json"):
            raise typer.BadParameter(f"{word} is nothing to measure; --json takes no file, --save {word} writes one")
        named = subject(word.partition("  #")[0])
        if not isinstance(named, Path):
            cases.append(usage(sets.of_line, word))
        elif named.suffix not in _MODELS:
            cases += usage(sets.of_file, named)
        else:
            with within(1, None, None):
                model, fed = session(named, semantics, inputs, dim, seed)
                model.run(None, {name: feed.array for name, feed in fed.items()})
            cases += sets.of_model(named.stem, model.nodes)
    return [*cases, *usage(sets.of_sets, names)]
