"""Detectors of ultralytics: ``python3 tools/yolo_networks.py FOLDER [NAME...]``.

Exports them to ONNX by PyTorch's exporter, with seeded random weights, so that nothing is downloaded: detection,
segmentation, poses, turned boxes, and RT-DETR.  ``polyconv bench --networks FOLDER/*.onnx`` runs them beside other
engines.  Needs ``pip install torch==2.13.0 torchvision ultralytics onnx``, in an environment of its own if need be.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exporting import declared, export_all, written

NAMES = (
    "yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov9t", "yolov10n", "yolo11n", "yolo11n-cls", "yolo11n-obb",
    "yolo11n-pose", "yolo11n-seg", "yolo12n", "yolo26n", "rtdetr-l",
)  # fmt: skip
_EXTENT, _CLASSIFIED = 320, 224
"""Of pictures, and of those that are classified."""


def prepared() -> Callable[[str, Path], Path]:
    """What exports a network by its name."""
    import torch

    library = declared(torch)  # before what asks for these operators is imported
    import ultralytics

    def by_name(name: str, folder: Path, kept: Any = library) -> Path:
        return export(name, folder, torch, ultralytics)

    return by_name


def export(name: str, folder: Path, torch: Any, ultralytics: Any) -> Path:
    """Write the file of a network, whole or not at all."""
    torch.manual_seed(0)
    model = ultralytics.RTDETR if name.startswith("rtdetr") else ultralytics.YOLO
    network = model(f"{name}.yaml").model.float().eval()
    for module in network.modules():  # heads then make boxes by what ONNX has
        if hasattr(module, "export"):
            module.export, module.format = True, "onnx"
    extent = _CLASSIFIED if name.endswith("cls") else _EXTENT
    x = torch.zeros(1, 3, extent, extent)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        network(x)  # anchors are made for the extents of the first picture
    return written(network, [x], folder, name, torch)


if __name__ == "__main__":
    sys.exit(export_all(__doc__, NAMES, prepared))
