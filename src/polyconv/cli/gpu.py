"""What the commands show of GPUs: ``check``, ``bench`` and ``tune`` with ``--device cuda``.

Figures come from ``conformance.on_gpu``, ``benchmark.cuda``, ``cuda_calls`` and ``cuda_networks``; this file chooses
columns and spells numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from polyconv.benchmark.record import save
from polyconv.benchmark.sets import Case
from polyconv.cli import render
from polyconv.errors import Unsupported
from polyconv.gpu.device import Device
from polyconv.problem.plan import Plan
from polyconv.problem.problem import Problem
from polyconv.settings import resolve

__all__ = [
    "FEW", "bench", "check", "device_of", "explain", "facts", "kinds_of", "name_of", "networks", "number_of", "planned",
    "providers_of", "tuned",
]  # fmt: skip

def device_of(word: str) -> Device:
    """The GPU that ``cuda``, ``cuda:1`` or, of those that need not be here, ``cuda:H100`` names."""
    from polyconv.gpu.device import device, presets

    name = word.partition(":")[2]
    return presets[name] if name in presets else device(number_of(word))


def explain(word: str, problem: Problem, accuracy: str, limit: int | None, *, kernel: bool, code: str,
            as_json: bool) -> None:  # fmt: skip
    """The plan of a problem on a GPU, or with ``kernel`` its generated code: LLVM's text (ir) and PTX (asm)."""
    from polyconv.gpu.compile import ptx
    from polyconv.gpu.plan import choose, described, job_of

    device = device_of(word)
    job = job_of(problem, device, accuracy=accuracy, workspace_limit=limit)
    form = choose(job)
    plan = described(job, form)
    specs = {} if form.moved is None else {form.moved.name: form.moved}
    for step in form.steps:
        specs |= {step.weights.name: step.weights, step.kernel.name: step.kernel}  # type: ignore[dict-item]
    rows = [(name, f"{s.grid[0]} x {s.threads}", f"{s.shared} B") for name, s in specs.items()]
    if as_json:
        texts = {name: ptx(s.kernel(), device.architecture) for name, s in specs.items()} if kernel else {}
        facts = {name: getattr(plan, name) for name in ("algorithm", "arithmetic", "seconds", "refused", "notes")}
        render.document({"command": "explain", "problem": str(problem), "device": device.level, **facts,
                         "kernels": [row[0] for row in rows], "ptx": texts})  # fmt: skip
        return
    if not kernel:
        render.line(str(replace(plan, refused=plan.refused[:_MOST_SHOWN])))
        if len(plan.refused) > _MOST_SHOWN:
            render.note(f"{len(plan.refused) - _MOST_SHOWN} more forms are predicted slower; --json lists them")
        return
    if code in ("list", "all"):
        render.table(f"{problem} by {form}", ("kernel", "blocks x threads", "shared"), rows)
    for name, spec in specs.items():
        if code in ("ir", "all"):
            render.line(f"; {name}\n{spec.kernel().text()}")
        if code in ("asm", "all"):
            render.line(f"// {name}\n{ptx(spec.kernel(), device.architecture)}")


def facts() -> dict[str, str]:
    """The GPUs of this machine, or why there is none."""
    from polyconv.gpu.device import device
    from polyconv.gpu.driver import driver, why_absent

    reason = why_absent()
    if reason is not None:
        return {"none": reason}
    found = {}
    for number in range(driver().count):
        try:
            one = device(number)
            memory = f"{one.multiprocessors} multiprocessors, {1e-9 * one.clock:.2f} GHz, {one.l2 >> 20} MiB cache"
            found[f"cuda:{number}"] = f"{one.name}, compute capability {one.major}.{one.minor}, {memory}"
        except Unsupported as error:
            found[f"cuda:{number}"] = str(error)
    return found


FEW = 60
"""Random problems of a check that names no number."""


def number_of(device: str) -> int:
    """Number of the GPU that ``cuda`` or ``cuda:1`` names."""
    word, _, number = device.partition(":")
    if word != "cuda" or not (number or "0").isdigit():
        raise typer.BadParameter(f"--device {device} is not known; give cuda, or cuda:1 for the second GPU")
    return int(number or 0)


def providers_of(device: str) -> list[Any]:
    """Providers of a session for ``cuda``, ``cuda:1``, or ``cuda,cpu`` where nodes without a kernel run on the CPU."""
    word, *others = device.split(",")
    if others not in ([], ["cpu"]):
        raise typer.BadParameter(f"--device {device} is not known; give cuda, cuda:1, or cuda,cpu")
    return [("CUDAExecutionProvider", {"device_id": number_of(word)}), *(["CPUExecutionProvider"] if others else [])]


def planned(problem: Problem, device: str) -> Plan:
    """The plan of a problem on a device, as sessions name it."""
    from polyconv.gpu.plan import plan

    return plan(problem, device_of(device), accuracy=resolve("accuracy"))


def tuned(problem: Problem, device: str, rigor: str) -> Plan:
    """The plan of a problem whose forms were timed on a GPU, with random weights."""
    import numpy as np

    from polyconv.conformance.on_gpu import on_device
    from polyconv.conformance.operands import operands
    from polyconv.gpu.layer import DeviceLayer
    from polyconv.gpu.plan import without_past

    p = without_past(problem)
    made = on_device(operands(p, np.random.default_rng(0), "normal"), number_of(device))
    layer = DeviceLayer(
        p.with_extents, made["w"], made["bias"], layout=p.layout, accuracy=resolve("accuracy"),
        limit=resolve("workspace_limit"), quantities=made["quantities"],
    )  # fmt: skip
    return layer.plan([extent or 0 for extent in p.x_shape], rigor=rigor)


def name_of(device: str) -> str:
    """Name of a GPU of this machine.

    Raises
    ------
    Unsupported
        If there is none, with the reason.
    """
    from polyconv.gpu.device import device as facts

    return facts(number_of(device)).name


def check(device: str, count: int, seed: int, *, as_json: bool) -> bool:
    """Random problems on a GPU; whether all were right."""
    from polyconv.conformance import on_gpu

    number, name = number_of(device), name_of(device)
    with render.progress("problems") as advance:
        report = on_gpu.run(count, seed, device=number, progress=lambda done: advance(done, count))
    if as_json:
        render.document({"command": "check", "device": name, "fuzz": report})
        return not report.findings
    render.table(f"runs on {name}", ("arithmetic", "runs"), sorted(report.runs.items()), right="runs")
    for finding in report.findings:
        render.line(finding)
    render.line(
        f"seed {seed}: {report.tried} problems, {sum(report.runs.values())} runs, {len(report.findings)} findings"
    )
    return not report.findings


def kinds_of(words: str) -> tuple[str, ...]:
    """Kinds of arithmetic from a list with commas."""
    from polyconv.benchmark.cuda import KINDS

    found = tuple(word.strip() for word in words.split(",") if word.strip())
    if strange := [word for word in found if word not in KINDS]:
        raise typer.BadParameter(f"--kinds {','.join(strange)} is not known; choose from {', '.join(KINDS)}")
    return found


_NETWORK_COLUMNS = (
    "network", "polyconv ms", "onnxruntime ms", "ratio", "load s", "first s", "between MB", "on the CPU", "error",
)  # fmt: skip


def networks(device: str, models: Sequence[tuple[Path, Mapping[str, Any]]], rounds: int, *, as_json: bool,
             file: Path | None) -> None:  # fmt: skip
    """Whole models on a GPU, each with what it is fed, against ONNX Runtime's CUDA provider."""
    from polyconv.benchmark.cuda_networks import OnGpu, measure

    rows: list[OnGpu] = []
    word, providers = device.partition(",")[0], providers_of(device)
    card, number = name_of(word), number_of(word)

    def document() -> dict[str, Any]:
        return {"command": "bench", "device": card, "networks": [{**asdict(r), "ratio": r.ratio} for r in rows]}

    with render.progress("networks") as advance:
        for path, feeds in models:
            rows.append(measure(path, feeds, providers, number, rounds))
            advance(len(rows), len(models))
            if file is not None:
                save({"schema_version": render.SCHEMA_VERSION, **document()}, file)
    if as_json:
        render.document(document())
        return
    table = [
        (r.name, f"{1e3 * r.seconds:.2f}", None if r.peer_seconds is None else f"{1e3 * r.peer_seconds:.2f}",
         None if r.ratio is None else f"{r.ratio:.2f}", f"{r.load_seconds:.2f}", f"{r.first_seconds:.2f}",
         f"{1e-6 * r.memory_bytes:.1f}", r.on_cpu, f"{r.error:.1e}") for r in rows
    ]  # fmt: skip
    render.table(card, _NETWORK_COLUMNS, table, " ".join(_NETWORK_COLUMNS[1:]))
    for why in dict.fromkeys(row.why for row in rows if row.why):
        render.note(f"onnxruntime: {why}")


_MOST_SHOWN = 8
_COLUMNS = ("layer", "type", "bound us", "cuDNN us", "with bias us", "polyconv us", "ratio", "planes", "error", "form")


def bench(device: str, cases: Sequence[Case], kinds: Sequence[str], count: int, rounds: int, *, as_json: bool,
          file: Path | None) -> None:  # fmt: skip
    """Layers on a GPU against cuDNN."""
    name_of(device)  # or why there is none
    from polyconv.benchmark import cuda, cuda_calls

    rows: list[cuda.Row] = []
    number = number_of(device)

    def document() -> dict[str, Any]:
        means = [asdict(mean) for mean in cuda.means(rows)]
        return {"command": "bench", "device": cuda.card(number), "rows": [asdict(row) for row in rows], "means": means}

    with render.progress("layers") as advance:

        def finished(row: cuda.Row, done: int, total: int) -> None:
            rows.append(row)
            advance(done, total)
            render.note(" ".join(str(word) for word in _row(row)))
            if file is not None:
                save({"schema_version": render.SCHEMA_VERSION, **document()}, file)

        cuda.run(cases, kinds, device=number, forms=count, rounds=rounds, progress=finished)
    spent = cuda_calls.costs(number)
    if file is not None:
        save({"schema_version": render.SCHEMA_VERSION, **document(), "costs": asdict(spent)}, file)
    if as_json:
        render.document({**document(), "costs": asdict(spent)})
        return
    card = cuda.card(number)
    title = ", ".join(f"{name} {value}" for name, value in card.items())
    render.table(title, _COLUMNS, [_row(row) for row in rows], " ".join(_COLUMNS[2:8]))
    for mean in cuda.means(rows):
        render.line(
            f"{mean.kind}: {mean.layers} layers, cuDNN takes {mean.best:.2f} times as long without its bias, "
            f"{mean.bias:.2f} with it; planes against planes {mean.planes:.2f}; {mean.share:.0%} of the bound; "
            f"lost: {', '.join(mean.lost) or 'none'}"
        )
    render.line(
        f"a call takes {spent.call:.1f} us of the host, {spent.call_out:.1f} us with out= (PyTorch's conv2d "
        f"{spent.torch:.1f} us); a layer's first call {spent.first:.0f} ms, a new image size {spent.size:.0f} ms, with "
        f"the code in the cache {spent.cached:.1f} ms"
    )


def _row(row: Any) -> tuple[object, ...]:
    def spelled(value: float | None) -> str | None:
        return None if value is None else f"{value:.1f}"

    ratio = None if row.ratio is None else f"{row.ratio:.2f}"
    planes = None if row.planes is None else f"{row.planes:.2f}"
    error = None if row.error is None else f"{row.error:.1e}"
    times = (row.bound, row.cudnn, row.cudnn_bias, row.polyconv)
    return row.layer, row.kind, *(spelled(t) for t in times), ratio, planes, error, row.form
