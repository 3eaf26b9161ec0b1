"""Options that several verbs share, and what their target names: a model file or a problem.

Words to values, with Typer's usage error for those that make no sense.  It must not know what is
done with them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from polyconv.cli import feeds, images
from polyconv.conformance.operands import Operands, operands
from polyconv.errors import ArgumentError, DtypeError
from polyconv.models.session import InferenceSession
from polyconv.models.session_options import SessionOptions
from polyconv.problem.problem import Problem
from polyconv.runtime.memory import allocating, sized
from polyconv.settings import resolve, settings

__all__ = [
    "Accuracy", "AsJson", "Dim", "Files", "Seed", "Semantics", "Target", "Threads", "WorkspaceLimit", "drawn",
    "opened", "session", "subject", "usage", "within",
]  # fmt: skip

EXAMPLE = "conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1"

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help=f"A .onnx or .xml file, or a problem: '{EXAMPLE}'.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of tables.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads of one call.")]
Accuracy = Annotated[
    Literal["fast", "strict"] | None,
    typer.Option("--accuracy", help="strict bounds every error by the output's own sum."),
]
WorkspaceLimit = Annotated[
    str | None, typer.Option("--workspace-limit", metavar="BYTES", help="As in 0, 64MB or 64MiB.")
]
Semantics = Annotated[
    Literal["onnx", "onnxruntime"],
    typer.Option("--semantics", help="Whose results count where ONNX Runtime deviates from ONNX."),
]
Files = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", metavar="NAME=FILE", help="A .npy, .npz, .png or .jpg file; else random."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of random inputs.")]
Dim = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=NUMBER", help="Extent of a named or unknown (input.axis) dimension."),
]


def usage(read: Callable[..., Any], *words: Any) -> Any:
    """Call a reader of the user's words; what it rejects is wrong usage (exit code 2)."""
    try:
        return read(*words)
    except (ArgumentError, DtypeError) as error:
        raise typer.BadParameter(str(error)) from None


def subject(target: str) -> Problem | Path:
    """What a target names: a file that exists, else, if it has several words, a problem."""
    if os.path.isfile(target):  # noqa: PTH113 - False, never an error, for what can be no name
        return _model_file(Path(target))
    if " " not in target.strip():
        raise typer.BadParameter(f"there is no file {target!r}; a problem reads like {EXAMPLE!r}")
    problem: Problem = usage(Problem.parse, target)
    if not problem.is_known:
        raise typer.BadParameter(f"{target!r} leaves sizes open; put numbers in place of '?'")
    return problem


def _model_file(path: Path) -> Path:
    """A file that is no model by its name is none: a picture or an array is what a model is fed."""
    if path.suffix.lower() in feeds.SUFFIXES:
        what = "a picture" if path.suffix.lower() in images.SUFFIXES else "an array"
        raise typer.BadParameter(
            f"{path} is {what}, no model; a model takes it by --input NAME={path}, as in: "
            f"polyconv run MODEL --input NAME={path}"
        )
    return path


def drawn(problem: Problem, seed: int) -> Operands:
    """Random operands of a problem."""
    shapes = {"x": (problem.x_shape, problem.x_dtype), "w": (problem.w_shape, problem.w_dtype)}
    if problem.residual:
        shapes["residual"] = problem.y_shape, problem.y_dtype
    sizes = {n: (tuple(int(e or 0) for e in shape), dtype.numpy) for n, (shape, dtype) in shapes.items()}
    largest = max(sizes, key=lambda name: math.prod(sizes[name][0]) * sizes[name][1].itemsize)
    with allocating(sized(f"{largest}, drawn at random,", *sizes[largest]), "choose smaller sizes"):
        return operands(problem, np.random.default_rng(seed), kind="normal")


def opened(
    path: Path, semantics: str, providers: Sequence[Any] | None = None, *, is_timed: bool = False
) -> InferenceSession:
    """A model under the settings in force; on a GPU each step is waited for, where it is to be timed."""
    return InferenceSession(
        path,
        SessionOptions(enable_profiling=is_timed and providers is not None),
        providers,
        semantics=semantics,
        accuracy=resolve("accuracy"),
        threads=resolve("threads"),
        workspace_limit=resolve("workspace_limit"),
    )


def session(
    path: Path, semantics: str, files: Sequence[str] | None, dim: Sequence[str] | None, seed: int,
    providers: Sequence[Any] | None = None,
) -> tuple[InferenceSession, dict[str, feeds.Feed]]:  # fmt: skip
    """A model under the settings in force, and what it is fed."""
    known, model = usage(feeds.dims, dim or ()), opened(path, semantics, providers, is_timed=True)
    return model, usage(feeds.feeds, model.get_inputs(), files or (), known, seed)


@contextmanager
def within(threads: int | None, accuracy: str | None, workspace_limit: str | None) -> Iterator[None]:
    """Run a block under the settings that the options name."""
    with ExitStack() as stack:
        given = settings(threads=threads, accuracy=accuracy, workspace_limit=workspace_limit)
        usage(stack.enter_context, given)
        yield
