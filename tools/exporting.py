"""What tools that export networks of PyTorch's libraries share.

torchvision's own operators are built for one build of torch: with another one they are declared, and not used.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["declared", "export_all", "written"]


def declared(torch: Any) -> Any:
    """Declare operators of torchvision that are not there; they are, as long as what is returned lives."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        with suppress(RuntimeError):  # it is there
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def written(network: Any, given: Sequence[Any], folder: Path, name: str, torch: Any) -> Path:
    """Write the file of a network that runs with some tensors, whole or not at all; its inputs are x0, x1, ..."""
    part = folder / f"{name}.part"
    names = [f"x{at}" for at in range(len(given))]
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        torch.onnx.export(network, tuple(given), str(part), opset_version=17, dynamo=False, input_names=names)
    return part.replace(folder / f"{name}.onnx")


def export_all(about: str | None, names: Sequence[str], prepared: Callable[[], Callable[[str, Path], Path]]) -> int:
    """Export all networks, or those that the command line names, to its folder; 1 if one of them cannot be.

    Parameters
    ----------
    about : str
        What the command does.
    names : sequence of str
        Of all networks.
    prepared : callable
        Imports what is needed; what it returns writes the file of a network, by its name, to a folder.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[*names])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    export, failed = prepared(), 0
    for name in given.names:
        try:
            path = export(name, given.folder)
            print(f"{path} {path.stat().st_size / 2**20:.0f} MB", flush=True)
        except Exception as error:  # the next one may do
            failed = 1
            print(f"{name}: {str(error)[:300]}", file=sys.stderr)
    return failed
