"""``polyconv explain``: what would run, and why.

A problem's plan, or the plan of every distinct convolution of a model: chosen and by what, predicted and
measured times, refused with the reason, workspace, error bound.  A model is run once, on what ``run`` would
feed it, because sizes inside it may depend on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

import polyconv
from polyconv.cli import options, render
from polyconv.models.session import NodeRecord
from polyconv.problem.problem import Problem

__all__ = ["command"]

_FACTS = ("algorithm", "source", "arithmetic", "threads", "workspace_bytes", "error_bound", "bound_kind", "seconds",
          "measured", "conditions", "candidates", "refused", "notes")  # fmt: skip


def command(
    target: options.Target,
    rigor: Annotated[
        Literal["estimate", "measure", "patient"] | None,
        typer.Option("--rigor", help="measure and patient time the candidates now; nothing is kept."),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Weights come with each call, as for polyconv.conv: preparing them counts. In a model, for every "
            "convolution; where weights are no constants it does so anyway.",
        ),
    ] = False,
    inputs: options.Files = None,
    dim: options.Dim = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    accuracy: options.Accuracy = None,
    workspace_limit: options.WorkspaceLimit = None,
    semantics: options.Semantics = "onnx",
    as_json: options.AsJson = False,
) -> None:
    """Show the plan of a problem, or of every convolution of a model."""
    wanted = options.subject(target)
    with options.within(threads, accuracy, workspace_limit):
        if isinstance(wanted, Problem):
            nodes: dict[tuple[str, bool], list[str]] = {(str(wanted), once): []}
        else:
            model, fed = options.session(wanted, semantics, inputs, dim, seed)
            model.run(None, {name: feed.array for name, feed in fed.items()})
            nodes = _by_problem(model.nodes, once)
        plans = {key: polyconv.plan(Problem.parse(key[0]), rigor=rigor, once=key[1]) for key in nodes}
    if as_json:
        rows = [
            {"problem": text, "once": anew, "nodes": names, **_facts(plans[text, anew])}
            for (text, anew), names in nodes.items()
        ]
        render.document({"command": "explain", "target": target, "plans": rows})
        return
    for number, (key, names) in enumerate(nodes.items()):
        if number:
            render.line()
        if names:
            render.line(f"# {', '.join(names)}{' (weights come with each run)' if key[1] else ''}")
        render.line(str(plans[key]))


def _by_problem(records: Sequence[NodeRecord], once: bool) -> dict[tuple[str, bool], list[str]]:
    """Distinct problems, and whether weights are prepared in each run, in running order, with their steps."""
    steps: dict[tuple[str, bool, int | None], list[str]] = {}
    for node in records:
        if node.problem is not None:
            steps.setdefault((node.problem, once or node.once, node.step), []).append(node.name)
    found: dict[tuple[str, bool], list[str]] = {}
    for (problem, anew, _), names in steps.items():
        found.setdefault((problem, anew), []).append(" + ".join(names))
    return found


def _facts(plan: Any) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in _FACTS}
