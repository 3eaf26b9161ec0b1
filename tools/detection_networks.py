"""Detectors of torchvision: ``python3 tools/detection_networks.py FOLDER [NAME...]``.

Exports them to ONNX by PyTorch's exporter, with seeded random weights, so that nothing is downloaded: all of a
detector, from the picture to the boxes that stay.  ``polyconv bench --networks FOLDER/*.onnx`` runs them beside other
engines.  Needs ``pip install torch==2.13.0 torchvision onnx``.  torchvision's own operators are built for one build of
torch; here functions of PyTorch stand for them, which become the same nodes of ONNX.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exporting import declared, export_all, written

DETECTORS: Mapping[str, tuple[str, int, bool]] = {
    "ssdlite": ("ssdlite320_mobilenet_v3_large", 320, False), "ssd300": ("ssd300_vgg16", 300, False),
    "fasterrcnn_mobilenet": ("fasterrcnn_mobilenet_v3_large_320_fpn", 320, False),
    "retinanet": ("retinanet_resnet50_fpn", 320, True), "fcos": ("fcos_resnet50_fpn", 320, True),
    "maskrcnn": ("maskrcnn_resnet50_fpn", 320, True),
}  # fmt: skip
"""Name -> torchvision's, extents of pictures, and whether it is told these."""
_MOST_BOXES = 10_000


def prepared() -> Callable[[str, Path], Path]:
    """What exports a detector by its name."""
    import torch

    library = declared(torch)  # before torchvision, which asks for these operators, is imported
    from torchvision.models import detection

    _stand_in(torch, detection)

    def by_name(name: str, folder: Path, kept: Any = library) -> Path:
        torch.manual_seed(0)
        theirs, extent, is_told = DETECTORS[name]
        told = {"min_size": extent, "max_size": extent} if is_told else {}
        network = getattr(detection, theirs)(weights=None, weights_backbone=None, **told).eval()
        return written(network, ([torch.rand(3, extent, extent)],), folder, name, torch)

    return by_name


def _stand_in(torch: Any, detection: Any) -> None:
    """Have detectors use functions that PyTorch computes, and that are exported as nodes of ONNX."""
    from torchvision.ops import poolers

    def constant(g: Any, *values: Any) -> list[Any]:
        return [g.op("Constant", value_t=torch.tensor(value)) for value in values]

    class Staying(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, boxes: Any, scores: Any, overlap: float) -> Any:
            """Numbers of the boxes that stay, the best one first; exporting needs no others than the first ones."""
            return torch.argsort(scores, descending=True)[:100]

        @staticmethod
        def symbolic(g: Any, boxes: Any, scores: Any, overlap: float) -> Any:
            """NonMaxSuppression of one image and one class."""
            given = g.op("Unsqueeze", boxes, *constant(g, [0])), g.op("Unsqueeze", scores, *constant(g, [0, 1]))
            found = g.op("NonMaxSuppression", *given, *constant(g, [_MOST_BOXES], [float(overlap)]))
            return g.op("Squeeze", g.op("Gather", found, *constant(g, [2]), axis_i=1), *constant(g, [1]))

    class Regions(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, x: Any, boxes: Any, extents: tuple[int, int], *told: Any) -> Any:
            """Maps of the right extents."""
            return torch.zeros(boxes.shape[0], x.shape[1], *extents)

        @staticmethod
        def symbolic(g: Any, x: Any, boxes: Any, extents: Any, scale: float, samples: int, half: bool) -> Any:
            """RoiAlign; the first column of boxes is the number of their image."""
            first = g.op("Slice", boxes, *constant(g, [0], [1], [1]))
            images = g.op("Cast", g.op("Squeeze", first, *constant(g, [1])), to_i=7)
            corners = g.op("Slice", boxes, *constant(g, [1], [5], [1]))
            return g.op(
                "RoiAlign", x, corners, images, spatial_scale_f=scale, sampling_ratio_i=max(samples, 0),
                output_height_i=extents[0], output_width_i=extents[1],
                coordinate_transformation_mode_s="half_pixel" if half else "output_half_pixel",
            )  # fmt: skip

    def staying(boxes: Any, scores: Any, classes: Any, overlap: float) -> Any:
        """Those of each class apart: each lies in a part of the plane of its own."""
        farthest = torch.cat([boxes.reshape(-1), boxes.new_zeros(1)]).max()
        return Staying.apply(boxes + (classes.to(boxes) * (farthest + 1))[:, None], scores, overlap)

    def regions(x: Any, boxes: Any, output_size: Any, spatial_scale: float = 1.0, sampling_ratio: int = -1,
                aligned: bool = False) -> Any:  # fmt: skip
        extents = int(output_size[0]), int(output_size[1])
        return Regions.apply(x, boxes, extents, float(spatial_scale), sampling_ratio, aligned)

    for part in (detection.rpn, detection.roi_heads, detection.ssd, detection.retinanet, detection.fcos):
        part.box_ops.batched_nms = staying
    poolers.roi_align = regions


if __name__ == "__main__":
    sys.exit(export_all(__doc__, [*DETECTORS], prepared))
