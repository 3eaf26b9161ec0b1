"""Networks of transformers and diffusers: ``python3 tools/hub_networks.py FOLDER [NAME...]``.

Exports them to ONNX by PyTorch's exporter, with seeded random weights and few layers, so that nothing is downloaded:
encoders of pictures, speech and text, depth, segmentation, detection, codecs of sound, and the parts of latent
diffusion.  ``polyconv bench --networks FOLDER/*.onnx`` runs them beside other engines.  Needs ``pip install
torch==2.13.0 torchvision transformers diffusers onnx onnxscript``, in an environment of its own if need be.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporting import declared, export_all

_SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
_TINY = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
_DINO = {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 6}
_SPEECH = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536}


@dataclass(frozen=True)
class Hub:
    """A network: its class and the class of its configuration, what these are told, and what is read and run.

    Parameters
    ----------
    model, config : str
        Names in transformers, or in diffusers where ``config`` is empty.
    told : callable
        Of the library: what the configuration is told.
    shapes : sequence of tuple of int
        Of its inputs; of floats, or, where the first extent is negative, of so many tokens.
    part : str
        Attribute of the model that is exported instead of all of it, if any.
    run : callable
        Of the network and its inputs: the result.
    """

    model: str
    config: str
    told: Callable[[Any], Mapping[str, Any]]
    shapes: Sequence[tuple[int, ...]]
    part: str = ""
    run: Callable[..., Any] = lambda network, *given: network(*given)[0]


def _picture(extent: int) -> tuple[tuple[int, ...]]:
    return ((1, 3, extent, extent),)


TRANSFORMERS: Mapping[str, Hub] = {
    "segformer_b0": Hub("SegformerForSemanticSegmentation", "SegformerConfig", lambda t: {"num_labels": 19},
                        _picture(256)),
    "dinov2_small": Hub("Dinov2Model", "Dinov2Config", lambda t: _DINO, _picture(224)),
    "depth_anything": Hub(
        "DepthAnythingForDepthEstimation", "DepthAnythingConfig",
        lambda t: {"backbone_config": t.Dinov2Config(**_DINO, image_size=224, reshape_hidden_states=False,
                                                     out_features=["stage3", "stage4", "stage5", "stage6"]),
                   "reassemble_hidden_size": 384, "neck_hidden_sizes": [48, 96, 192, 384], "patch_size": 14},
        _picture(224)),
    "clip_vision": Hub("CLIPVisionModel", "CLIPVisionConfig", lambda t: _SMALL, _picture(224)),
    "yolos_tiny": Hub("YolosForObjectDetection", "YolosConfig", lambda t: {**_TINY, "image_size": [256, 256]},
                      _picture(256)),
    "rt_detr": Hub(
        "RTDetrForObjectDetection", "RTDetrConfig",
        lambda t: {"backbone_config": t.RTDetrResNetConfig(depths=[2] * 4, layer_type="basic",
                                                           hidden_sizes=[64, 128, 256, 512],
                                                           out_features=["stage2", "stage3", "stage4"]),
                   "encoder_in_channels": [128, 256, 512], "num_queries": 100}, _picture(320)),
    "sam_encoder": Hub(
        "SamModel", "SamConfig",
        lambda t: {"vision_config": t.SamVisionConfig(hidden_size=192, num_hidden_layers=4, num_attention_heads=3,
                                                      image_size=512, mlp_dim=768, global_attn_indexes=[1, 3],
                                                      window_size=7)}, _picture(512), "vision_encoder"),
    "swin2sr": Hub("Swin2SRForImageSuperResolution", "Swin2SRConfig",
                   lambda t: {"image_size": 64, "embed_dim": 60, "depths": [2, 2], "num_heads": [6, 6],
                              "window_size": 8, "upscale": 2}, _picture(64)),
    "glpn": Hub("GLPNForDepthEstimation", "GLPNConfig", lambda t: {}, _picture(256)),
    "convnextv2": Hub("ConvNextV2Model", "ConvNextV2Config",
                      lambda t: {"hidden_sizes": [40, 80, 160, 320], "depths": [2, 2, 6, 2]}, _picture(224)),
    "superpoint": Hub("SuperPointForKeypointDetection", "SuperPointConfig", lambda t: {}, [(1, 1, 240, 320)],
                      "encoder"),
    "bert_small": Hub("BertModel", "BertConfig",
                      lambda t: {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
                                 "intermediate_size": 1024}, [(-1, 128)]),
    "whisper_encoder": Hub("WhisperModel", "WhisperConfig", lambda t: {}, [(1, 80, 3000)], "encoder"),
    "wav2vec2_small": Hub("Wav2Vec2Model", "Wav2Vec2Config", lambda t: _SPEECH, [(1, 32000)]),
    "hubert_small": Hub("HubertModel", "HubertConfig", lambda t: {**_SPEECH, "hidden_size": 256,
                                                                 "num_attention_heads": 4}, [(1, 32000)]),
    "encodec_encoder": Hub("EncodecModel", "EncodecConfig", lambda t: {}, [(1, 1, 24000)], "encoder",
                           lambda network, x: network(x)),
    "encodec_decoder": Hub("EncodecModel", "EncodecConfig", lambda t: {}, [(1, 128, 75)], "decoder",
                           lambda network, x: network(x)),
}  # fmt: skip

_VAE = {"block_out_channels": (64, 128, 128), "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3, "layers_per_block": 1, "latent_channels": 4}  # fmt: skip

DIFFUSERS: Mapping[str, Hub] = {
    "vae_encoder": Hub("AutoencoderKL", "", lambda d: _VAE, _picture(128),
                       run=lambda network, x: network.encode(x).latent_dist.mean),
    "vae_decoder": Hub("AutoencoderKL", "", lambda d: _VAE, [(1, 4, 32, 32)],
                       run=lambda network, z: network.decode(z).sample),
    "taesd_decoder": Hub("AutoencoderTiny", "", lambda d: {}, [(1, 4, 32, 32)],
                         run=lambda network, z: network.decode(z).sample),
    "ddpm_unet": Hub(
        "UNet2DModel", "",
        lambda d: {"sample_size": 64, "block_out_channels": (64, 128, 192), "layers_per_block": 1,
                   "attention_head_dim": 32, "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
                   "up_block_types": ("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D")},
        [(1, 3, 64, 64), (1,)], run=lambda network, x, at: network(x, at).sample),
    "sd_unet": Hub(
        "UNet2DConditionModel", "",
        lambda d: {"sample_size": 32, "block_out_channels": (96, 192, 288), "layers_per_block": 1,
                   "cross_attention_dim": 128, "attention_head_dim": 6,
                   "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
                   "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D")},
        [(1, 4, 32, 32), (1,), (1, 20, 128)], run=lambda network, x, at, text: network(x, at, text).sample),
}  # fmt: skip


def prepared() -> Callable[[str, Path], Path]:
    """What exports a network by its name."""
    import torch

    library = declared(torch)  # before what asks for these operators is imported
    import diffusers
    import transformers

    def by_name(name: str, folder: Path, kept: Any = library) -> Path:
        return export(name, folder, torch, transformers, diffusers)

    return by_name


def export(name: str, folder: Path, torch: Any, transformers: Any, diffusers: Any) -> Path:
    """Write the file of a network, whole or not at all."""
    torch.manual_seed(0)
    hub = (TRANSFORMERS | DIFFUSERS)[name]
    library = transformers if hub.config else diffusers
    told = hub.told(library)
    model = getattr(library, hub.model)
    network = model(getattr(library, hub.config)(**told)) if hub.config else model(**told)
    network = getattr(network, hub.part) if hub.part else network

    class Run(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *given: Any) -> Any:
            return hub.run(self.network, *given)

    drawn = torch.Generator().manual_seed(1)
    given = [torch.randint(0, 30000, (1, *shape[1:]), generator=drawn) if shape[0] < 0
             else torch.randn(shape, generator=drawn) for shape in hub.shapes]  # fmt: skip
    target, part = folder / f"{name}.onnx", folder / f"{name}.part"
    names = [f"x{at}" for at in range(len(given))]
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        torch.onnx.export(Run().eval(), tuple(given), str(part), opset_version=17, dynamo=False, input_names=names)
    return part.replace(target)


if __name__ == "__main__":
    sys.exit(export_all(__doc__, [*TRANSFORMERS, *DIFFUSERS], prepared))
