"""Networks of pytorchcv: ``python3 tools/classic_networks.py FOLDER [NAME...]``.

Exports them to ONNX by PyTorch's exporter, with seeded random weights, so that nothing is downloaded: classifiers of
ten years, segmentation of streets, poses and detection.  ``polyconv bench --networks FOLDER/*.onnx`` runs them beside
other engines.  Needs ``pip install torch==2.13.0 torchvision pytorchcv onnx``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exporting import declared, export_all, written

_BY_EXTENTS: Mapping[tuple[int, int], str] = {
    (224, 224): """
        airnet50_1x64d_r2 alexnetb bagnet9 bam_resnet18 bn_vgg11b bninception cbam_resnet18 condensenet74_c4_g4
        darknet53 darknet_tiny darts densenet121 diracnet18v2 dpn68 drnc26 efficientnet_b0b efficientnet_b1
        espnetv2_wd2 fbnet_cb fdmobilenet_w1 fishnet99 ghostnet hardnet39ds hrnet_w18_small_v1 ibn_resnet50
        ibn_resnext101_32x4d ibnb_resnet50 igcv3_w1 menet348_12x1_g3 mixnet_m mnasnet_b1 mobilenet_w1
        mobilenetv2_w1 mobilenetv3_large_w1 nasnet_4a1056 octresnet10_ad2 peleenet preresnet18 proxylessnas_cpu
        regnetx004 regnety008 resnesta18 resneta10 resnet10 resnext26_32x4d selecsls42b senet16 seresnet18
        shufflenet_g3_w1 shufflenetv2_w1 spnasnet sqnxt23_w1 squeezenet_v1_0 squeezeresnet_v1_1 vgg11 vovnet27s
        wrn50_2 zfnet""",
    (299, 299): "inceptionv3 inceptionv4",
    (240, 240): "danet_resnetd50b_cityscapes",
    (256, 512): """
        cgnet_cityscapes dabnet_cityscapes edanet_cityscapes erfnet_cityscapes esnet_cityscapes fpenet_cityscapes
        lednet_cityscapes linknet_cityscapes sinet_cityscapes""",
    (256, 256): """
        bisenet_resnet18_celebamaskhq centernet_resnet18_voc lwopenpose2d_mobilenet_cmupan_coco sqnet_cityscapes
        unet_cityscapes""",
    (256, 192): """
        alphapose_fastseresnet101b_coco simplepose_mobile_mobilenetv3_small_w1_coco simplepose_resnet18_coco""",
}
NETWORKS: Mapping[str, tuple[int, int]] = {
    name: extents for extents, names in _BY_EXTENTS.items() for name in names.split()
}  # fmt: skip
"""Name -> extents of its picture."""
_TOLD = ("cityscapes", "celeba", "pose", "voc")
"""In names of networks that are told the extents of pictures."""


def prepared() -> Callable[[str, Path], Path]:
    """What exports a network by its name."""
    import torch

    library = declared(torch)  # before torchvision, which asks for these operators, is imported
    from pytorchcv.model_provider import get_model

    def by_name(name: str, folder: Path, kept: Any = library) -> Path:
        torch.manual_seed(0)
        extents = NETWORKS[name]
        told = {"in_size": extents} if any(word in name for word in _TOLD) else {}
        network = get_model(name, pretrained=False, **told).eval()
        return written(network, [torch.randn(1, 3, *extents)], folder, name, torch)

    return by_name


if __name__ == "__main__":
    sys.exit(export_all(__doc__, [*NETWORKS], prepared))
