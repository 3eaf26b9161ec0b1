"""Networks of volumes, restoration, segmentation, sound, flow: ``python3 tools/volume_networks.py FOLDER [NAME...]``.

Exports them to ONNX by PyTorch's exporter, with seeded random weights, so that nothing is downloaded.  They are of
MONAI (volumes), spandrel (pictures made better), segmentation-models-pytorch, asteroid and torchaudio (sound), and
torchvision (films and optical flow).  ``polyconv bench --networks FOLDER/*.onnx`` runs them beside other engines.
Needs ``pip install torch==2.13.0 torchvision onnx timm einops soundfile scipy`` and, with ``--no-deps`` as some ask
for other builds of torch, ``monai spandrel segmentation-models-pytorch asteroid asteroid-filterbanks torchaudio``.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from exporting import declared, export_all, written


@dataclass(frozen=True)
class Member:
    """A network: its class and the module of that, the shapes of its inputs, what it is told, and how it is run."""

    module: str
    model: str
    shapes: Sequence[tuple[int, ...]]
    told: Mapping[str, Any] = field(default_factory=dict)
    run: Callable[..., Any] = lambda forward, *given: forward(*given)


def _volume(model: str, extent: int = 64, **told: Any) -> Member:
    return Member("monai.networks.nets", model, [(1, 1, *[extent] * 3)], told)


def _restored(module: str, extent: int, model: str = "", channels: int = 3, **told: Any) -> Member:
    return Member(f"spandrel.architectures.{module}", model or module, [(1, channels, extent, extent)], told)


def _segmented(model: str, encoder: str, extent: int = 256) -> Member:
    told = {"encoder_name": encoder, "encoder_weights": None, "classes": 4}
    return Member("segmentation_models_pytorch", model, [(1, 3, extent, extent)], told)


def _separated(model: str, samples: int, **told: Any) -> Member:
    return Member("asteroid.models", model, [(1, 1, samples)], {"n_src": 2, **told})


_3D: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
_STAGES: dict[str, Any] = {"channels": (16, 32, 64, 128), "strides": (2, 2, 2)}
_DYN: dict[str, Any] = {"kernel_size": (3, 3, 3, 3), "strides": (1, 2, 2, 2), "upsample_kernel_size": (2, 2, 2)}
_LAYERS: dict[str, Any] = {"embed_dim": 60, "depths": [2, 2], "num_heads": [6, 6], "window_size": 8}
_WINDOWS: dict[str, Any] = {**_LAYERS, "upscale": 2, "upsampler": "pixelshuffle"}
_CODED: dict[str, Any] = {"enc_blk_nums": [1, 1, 2, 4], "dec_blk_nums": [1, 1, 1, 1]}

NETWORKS: Mapping[str, Member] = {
    "monai_unet": _volume("UNet", **_3D, **_STAGES),
    "monai_unet_residual": _volume("UNet", **_3D, **_STAGES, num_res_units=2),
    "monai_basic_unet": _volume("BasicUNet", features=(16, 16, 32, 64, 128, 16)),
    "monai_segresnet": _volume("SegResNet"),
    "monai_vnet": _volume("VNet", 32),
    "monai_dynunet_residual": _volume("DynUNet", **_3D, **_DYN, filters=(16, 32, 64, 128), res_block=True),
    "monai_attention_unet": _volume("AttentionUnet", **_3D, **_STAGES),
    "monai_highresnet": _volume("HighResNet", 32),
    "monai_densenet121": _volume("DenseNet121", **_3D),
    "monai_seresnet50": _volume("SEResNet50", spatial_dims=3, in_channels=1, num_classes=4),
    "monai_regunet": _volume("RegUNet", spatial_dims=3, in_channels=1, num_channel_initial=16, depth=3),
    "monai_mednext": _volume("MedNeXt", 48, init_filters=16, blocks_down=(1,) * 4, blocks_up=(1,) * 4,
                             blocks_bottleneck=1),
    "monai_unetr": _volume("UNETR", **_3D, img_size=64, hidden_size=192, mlp_dim=768, num_heads=6),
    "monai_swin_unetr": _volume("SwinUNETR", **_3D, feature_size=12),
    "esrgan": _restored("ESRGAN", 64, num_blocks=4),
    "srvgg_compact": _restored("Compact", 96),
    "dncnn": _restored("DnCNN", 128, channels=1),
    "drunet": _restored("DRUNet", 128, in_nc=4, out_nc=3, channels=4, nc=[32, 64, 128, 256], nb=2),
    "fbcnn": _restored("FBCNN", 96, nb=1),
    "nafnet": _restored("NAFNet", 128, width=32, middle_blk_num=2, **_CODED),
    "kbnet": _restored("KBNet", 64, "KBNet_s", width=16, middle_blk_num=1, **_CODED),
    "scunet": _restored("SCUNet", 64, config=[1, 1, 1, 1, 1, 1, 1], input_resolution=64),
    "plksr": _restored("PLKSR", 64, dim=48, n_blocks=8, upscaling_factor=2),
    "real_plksr": _restored("PLKSR", 64, "RealPLKSR", dim=48, n_blocks=8),
    "span": _restored("SPAN", 96, num_in_ch=3, num_out_ch=3),
    "safmn": _restored("SAFMN", 128, dim=36),
    "mosr": _restored("MoSR", 64, n_block=8),
    "seemore": _restored("SeemoRe", 64, embedding_dim=36),
    "omnisr": _restored("OmniSR", 64),
    "swinir": _restored("SwinIR", 64, **_WINDOWS),
    "hat": _restored("HAT", 64, **_WINDOWS),
    "dat": _restored("DAT", 64, embed_dim=60, split_size=[8, 16], depth=[2, 2], num_heads=[2, 2], upscale=2),
    "drct": _restored("DRCT", 64, **_WINDOWS),
    "mixdehazenet": _restored("MixDehazeNet", 128),
    "uformer": _restored("Uformer", 128, img_size=128, embed_dim=16),
    "retinexformer": _restored("RetinexFormer", 128, n_feat=32, stage=1),
    "cidnet": Member("spandrel.architectures.HVICIDNet", "HVICIDNet", [(1, 3, 128, 128)],
                     run=lambda forward, x: forward(x.sigmoid())),  # dark where colours are negative
    "cugan": _restored("RealCUGAN", 64, "UpCunet2x"),
    "swift_srgan": _restored("SwiftSRGAN", 64, num_blocks=8),
    "smp_unet": _segmented("Unet", "resnet34"),
    "smp_unetpp": _segmented("UnetPlusPlus", "timm-mobilenetv3_small_100"),
    "smp_fpn": _segmented("FPN", "efficientnet-b0"),
    "smp_pspnet": _segmented("PSPNet", "resnet18", 192),
    "smp_deeplabv3plus": _segmented("DeepLabV3Plus", "mobilenet_v2"),
    "smp_manet": _segmented("MAnet", "resnet18"),
    "smp_linknet": _segmented("Linknet", "vgg11_bn"),
    "smp_pan": _segmented("PAN", "timm-regnetx_008"),
    "smp_upernet": _segmented("UPerNet", "densenet121", 192),
    "smp_segformer": _segmented("Segformer", "mit_b0"),
    "conv_tasnet": _separated("ConvTasNet", 8000),
    "sudormrf": _separated("SuDORMRFNet", 8000, num_blocks=4),
    "wav2letter": Member("torchaudio.models.wav2letter", "Wav2Letter", [(1, 1, 16000)]),
    "s3d": Member("torchvision.models.video", "s3d", [(1, 3, 16, 224, 224)]),
    "maxvit_t": Member("torchvision.models", "maxvit_t", [(1, 3, 224, 224)]),
    "raft_small": Member("torchvision.models.optical_flow", "raft_small", [(1, 3, 128, 128)] * 2,
                         run=lambda forward, *given: forward(*given, num_flow_updates=4)[-1]),
}  # fmt: skip


def prepared() -> Callable[[str, Path], Path]:
    """What exports a network by its name."""
    import torch

    library = declared(torch)  # before what asks for these operators is imported
    for name in ("torchaudio", "torchaudio.models"):  # without what they have compiled for one build of torch
        package, found = types.ModuleType(name), importlib.util.find_spec(name)
        package.__path__ = [*((found and found.submodule_search_locations) or ())]
        sys.modules[name] = package
    return partial(export, torch=torch, kept=library)


def export(name: str, folder: Path, torch: Any, kept: Any) -> Path:
    """Write the file of a network, whole or not at all."""
    torch.manual_seed(0)
    member = NETWORKS[name]
    network = getattr(importlib.import_module(member.module), member.model)(**member.told).eval()
    network.forward = partial(member.run, network.forward)
    drawn = torch.Generator().manual_seed(1)
    return written(network, [torch.randn(shape, generator=drawn) for shape in member.shapes], folder, name, torch)


if __name__ == "__main__":
    sys.exit(export_all(__doc__, [*NETWORKS], prepared))
