"""Networks as users export them: ``python3 tools/architectures.py FOLDER [NAME...]``.

Exports architectures of torchvision and timm to ONNX, by PyTorch's exporter, with seeded random weights: whatever
those libraries write, in the operators that the exporter has for it.  ``polyconv bench --networks FOLDER/*.onnx`` runs
them beside other engines.  Needs ``pip install torch==2.13.0 torchvision timm onnx onnxscript``, in an environment of
its own if need be.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exporting import declared, export_all

TORCHVISION = (
    "alexnet", "squeezenet1_1", "shufflenet_v2_x1_0", "mnasnet1_0", "efficientnet_b0", "efficientnet_v2_s",
    "regnet_y_400mf", "regnet_x_800mf", "resnext50_32x4d", "swin_t", "resnet34", "densenet161", "mobilenet_v3_small",
    "googlenet", "inception_v3", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50",
    "r3d_18", "mc3_18", "r2plus1d_18",
)  # fmt: skip
"""Classifiers, then what finds classes of pixels, then networks of videos."""

TIMM = (
    "ghostnet_100", "mobileone_s0", "fastvit_t8", "repvgg_a0", "efficientformer_l1", "mobilevit_s", "convnextv2_nano",
    "mobilenetv4_conv_small", "edgenext_small", "coatnet_nano_rw_224", "hrnet_w18_small", "dla34", "res2net50_26w_4s",
    "cspdarknet53", "poolformer_s12", "tinynet_a", "xception41", "resnet26d", "seresnet50", "regnetz_b16",
    "inception_next_tiny", "levit_128", "vit_tiny_patch16_224", "repvit_m1", "starnet_s1", "dpn68", "selecsls42b",
    "hardcorenas_a", "mixnet_s", "rexnet_100", "pvt_v2_b0", "nfnet_l0", "gcresnext26ts", "vovnet39a",
    "ese_vovnet19b_dw", "lcnet_100",
)  # fmt: skip

SHAPES: Mapping[str, tuple[int, ...]] = {
    "inception_v3": (299, 299), "deeplabv3_mobilenet_v3_large": (256, 256), "lraspp_mobilenet_v3_large": (256, 256),
    "fcn_resnet50": (192, 192), **dict.fromkeys(("r3d_18", "mc3_18", "r2plus1d_18"), (8, 112, 112)),
}  # fmt: skip
"""Extents of the input of those of torchvision that are not given 224 by 224 pixels; timm says its own."""

_ONE_OUTPUT, _UNTRAINED = {"init_weights": False, "aux_logits": False}, {"weights_backbone": None}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "googlenet": _ONE_OUTPUT, "inception_v3": _ONE_OUTPUT, "deeplabv3_mobilenet_v3_large": _UNTRAINED,
    "lraspp_mobilenet_v3_large": _UNTRAINED, "fcn_resnet50": _UNTRAINED,
}  # fmt: skip
"""What else torchvision is told of some, so that nothing is loaded and there is one output."""


def prepared() -> Callable[[str, Path], Path]:
    """What exports a network by its name."""
    import torch

    library = declared(torch)  # before what asks for these operators is imported
    import timm
    import torchvision

    def by_name(name: str, folder: Path, kept: Any = library) -> Path:
        return export(name, folder, torch, torchvision, timm)

    return by_name


def made(name: str, torch: Any, torchvision: Any, timm: Any) -> tuple[Any, Sequence[int]]:
    """A network and the shape of its input."""
    if name in TIMM:
        network = timm.create_model(name, pretrained=False)
        return network, (1, *network.default_cfg["input_size"])
    network = torchvision.models.get_model(name, weights=None, **OPTIONS.get(name, {}))
    return network, (1, 3, *SHAPES.get(name, (224, 224)))


def export(name: str, folder: Path, torch: Any, torchvision: Any, timm: Any) -> Path:
    """Write the file of a network, whole or not at all."""
    torch.manual_seed(0)
    network, shape = made(name, torch, torchvision, timm)
    drawn = torch.Generator().manual_seed(1)
    for layer in network.modules():  # statistics that are not those of a new layer, which do nothing
        if isinstance(layer, torch.nn.BatchNorm2d | torch.nn.BatchNorm3d):
            layer.running_mean.normal_(0, 0.1, generator=drawn)
            layer.running_var.uniform_(0.5, 1.5, generator=drawn)
    target, part = folder / f"{name}.onnx", folder / f"{name}.part"
    x = torch.randn(shape, generator=drawn)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        torch.onnx.export(network.eval(), x, str(part), opset_version=17, dynamo=False, input_names=["x"])
    return part.replace(target)


if __name__ == "__main__":
    sys.exit(export_all(__doc__, [*TORCHVISION, *TIMM], prepared))
