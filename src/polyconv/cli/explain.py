"""``polyconv explain``: what would run, and why.

A problem's plan; or of a model a row for every step, with its bytes and times, and one for every distinct convolution:
chosen and by what, predicted time, workspace, error bound; what was considered and refused, with the reason, below it
on request; or the generated code.  A model is run on what ``run`` would feed it, because sizes inside it may depend on
values, and because times are measured.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import polyconv
from polyconv.cli import gpu, kernels, options, render, steps
from polyconv.errors import ArgumentError
from polyconv.models.records import NodeRecord, StepRecord
from polyconv.names import nearest
from polyconv.problem.plan import Plan, spelled
from polyconv.problem.problem import Problem
from polyconv.settings import resolve, spelled_bytes

__all__ = ["command"]

_FACTS = ("algorithm", "source", "arithmetic", "form", "threads", "workspace_bytes", "error_bound", "bound_kind",
          "seconds", "measured", "conditions", "candidates", "refused", "notes")  # fmt: skip


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
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Of a model: below the table every plan in full.")
    ] = False,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NAME", help="Of a model: only the convolutions so named; may be repeated."),
    ] = None,
    kernel: Annotated[
        bool,
        typer.Option(
            "--kernel",
            help="Instead: the generated code, a table of its kernels, and of each LLVM's intermediate representation "
            "and the assembly for the CPU in force.",
        ),
    ] = False,
    code: Annotated[
        kernels.Form, typer.Option("--code", help="With --kernel: the table, one form of the code, or all.")
    ] = "all",
    match: Annotated[
        str | None,
        typer.Option("--match", metavar="REGEX", help="With --kernel: only kernels in whose label it is found."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="cuda[:N]", help="On this GPU; of a problem's plan also one that is not here: "
                     "cuda:H100, cuda:A100; of a model cuda,cpu lets nodes without a kernel run on the CPU."),
    ] = None,
    inputs: options.Files = None,
    dim: options.Dim = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    accuracy: options.Accuracy = None,
    workspace_limit: options.WorkspaceLimit = None,
    semantics: options.Semantics = "onnx",
    as_json: options.AsJson = False,
) -> None:
    """Show the plan of a problem, or of every convolution of a model; with --kernel the generated code."""
    wanted = options.subject(target)
    _check(wanted, node, kernel, code, match, candidates)
    if device is not None and not isinstance(wanted, Problem) and (kernel or candidates or rigor or once):
        raise typer.BadParameter("--kernel, --candidates, --rigor and --once go with --device for problems alone")
    if device is not None and isinstance(wanted, Problem):
        with options.within(threads, accuracy, workspace_limit):
            gpu.explain(device, wanted, resolve("accuracy"), resolve("workspace_limit"), kernel=kernel, code=code,
                        as_json=as_json)  # fmt: skip
        return
    with options.within(threads, accuracy, workspace_limit):
        if isinstance(wanted, Problem):
            nodes: dict[tuple[str, bool], list[str]] = {(str(wanted), once): []}
            elsewhere: list[tuple[str, str, str, str]] = []
            records, memory = tuple[StepRecord, ...](), None
        else:
            providers = None if device is None else gpu.providers_of(device)
            model, fed = options.session(wanted, semantics, inputs, dim, seed, providers)
            records = steps.timed(model, {name: feed.array for name, feed in fed.items()})
            nodes = options.usage(_named_so, _by_problem(model.nodes, once), node)
            elsewhere, memory = _elsewhere(model.nodes), model.memory
        plans = {
            key: polyconv.plan(Problem.parse(key[0]), rigor=rigor, once=key[1]) if device is None
            else gpu.planned(Problem.parse(key[0]), device.partition(",")[0])
            for key in nodes
        }  # fmt: skip
        listed = options.usage(kernels.of_plans, [*plans.values()], match) if kernel else ()
    if as_json:
        rows = [
            {"problem": text, "once": anew, "nodes": names, **_facts(plans[text, anew])}
            for (text, anew), names in nodes.items()
        ]
        if kernel:
            rows = [{**row, "kernels": kernels.roles(used)} for row, (_, used) in zip(rows, listed, strict=True)]
        generated = {"kernels": kernels.data(listed, code)} if kernel else {}
        hosted = [dict(zip(_ELSEWHERE, row, strict=True)) for row in elsewhere]
        by_step = steps.rows(records, plans, once)
        more = {} if memory is None else {"elsewhere": hosted, "steps": by_step, "memory": memory}
        render.document({"command": "explain", "target": target, "plans": rows, **more, **generated})
        return
    if kernel:
        kernels.show(listed, code)
        return
    if memory is not None:
        if not node:
            steps.show(target, steps.rows(records, plans, once), memory)
        _table(target, nodes, plans)
        if elsewhere:
            render.line()
            render.table("operators that do not run on polyconv", _ELSEWHERE, elsewhere, "nodes")
        if not candidates:
            render.note("--candidates shows for each what else was considered, what was refused and why")
            return
    for key, names in nodes.items():
        if names:
            render.line(f"# {', '.join(names)}{_ANEW if key[1] else ''}")
        _plan(plans[key])
        if names:
            render.line()


def _check(wanted: Problem | Path, node: Sequence[str] | None, kernel: bool, code: str, match: str | None,
           candidates: bool) -> None:  # fmt: skip
    """Refuse options that would have no effect."""
    if kernel and candidates:
        raise typer.BadParameter("--kernel shows code instead of plans, --candidates more of plans; leave one out")
    if node and isinstance(wanted, Problem):
        raise typer.BadParameter("--node names convolutions of a model, and the target is a problem; leave it out")
    if not kernel and (code != "all" or match is not None):
        given = "--match" if code == "all" else "--code"
        raise typer.BadParameter(f"{given} chooses among generated code, which --kernel shows: add --kernel")


_ANEW = " (weights come with each run)"
_MOST_NAMES = 3


def _could_apply(plan: Plan) -> set[str]:
    """Algorithms that could compute the problem if accuracy and workspace allowed."""
    freest = polyconv.plan(plan.problem, accuracy="fast", workspace_limit=sys.maxsize, rigor="estimate")
    return {c.algorithm for c in (*plan.candidates, *freest.candidates)}


def _plan(plan: Plan) -> None:
    """Write a plan without the algorithms that are made for other problems."""
    could = _could_apply(plan)
    refused = tuple((name, reason) for name, reason in plan.refused if name in could)
    render.line(str(replace(plan, refused=refused)))
    left = len(plan.refused) - len(refused)
    if left:
        render.note(f"{left} algorithms are made for other problems; --json lists them with their reasons")


def _table(target: str, nodes: Mapping[tuple[str, bool], Sequence[str]], plans: Mapping[tuple[str, bool], Plan]
           ) -> None:  # fmt: skip
    """One row for every distinct convolution of a model, in running order."""
    total = sum(len(names) * plans[key].seconds for key, names in nodes.items()) or 1.0
    rows = [
        (
            _named(names) + (_ANEW if key[1] else ""), str(plan.problem), plan.algorithm,
            plan.source, f"{1e6 * plan.seconds:,.1f}", f"{len(names) * plan.seconds / total:.0%}",
            spelled_bytes(plan.workspace_bytes), "exact" if plan.error_bound == 0 else f"{plan.error_bound:.1e}",
        )
        for key, names in nodes.items() for plan in (plans[key],)
    ]  # fmt: skip
    columns = ("convolution", "problem", "algorithm", "chosen-by", "us", "share", "workspace", "error")
    render.table(f"{target}: {sum(map(len, nodes.values()))} convolutions, {len(nodes)} plans", columns, rows,
                 "us share workspace error")  # fmt: skip
    render.line(f"together {spelled(total)} predicted on one thread")


_ELSEWHERE = ("operator", "nodes", "engine", "reason")


def _elsewhere(records: Sequence[NodeRecord]) -> list[tuple[str, str, str, str]]:
    """Each operator that does not run on polyconv, with how many nodes, on what, and why."""
    counts = Counter((record.op, record.engine, record.reason) for record in records if record.reason)
    return [(op, str(count), engine, reason) for (op, engine, reason), count in counts.items()]


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} and {len(names) - 1} more"


def _by_problem(records: Sequence[NodeRecord], once: bool) -> dict[tuple[str, bool], list[str]]:
    """Distinct problems, and whether weights are prepared in each run, in running order, with their steps."""
    by_step: dict[tuple[str, bool, int | None], list[str]] = {}
    for node in records:
        if node.problem is not None:
            by_step.setdefault((node.problem, once or node.once, node.step), []).append(node.name)
    found: dict[tuple[str, bool], list[str]] = {}
    for (problem, anew, _), names in by_step.items():
        found.setdefault((problem, anew), []).append(" + ".join(names))
    return found


Nodes = dict[tuple[str, bool], list[str]]


def _named_so(nodes: Nodes, wanted: Sequence[str] | None) -> Nodes:
    """The convolutions with some names; one that runs together with its neighbours has the names of all.

    Raises
    ------
    ArgumentError
        If no convolution has one of the names.
    """
    if not wanted:
        return nodes
    known = {name: {name, *name.split(" + ")} for names in nodes.values() for name in names}
    if missing := set(wanted).difference(*known.values()):
        word = min(missing)
        near = nearest(word, set().union(*known.values()))
        advice = f"did you mean {near}?" if near else "explain without --node lists their names"
        raise ArgumentError(f"no convolution of the model is called {word}; {advice}")
    kept = {key: [name for name in names if known[name] & {*wanted}] for key, names in nodes.items()}
    return {key: names for key, names in kept.items() if names}


def _facts(plan: Any) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in _FACTS}
