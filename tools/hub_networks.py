"""Networks of transformers and diffusers: ``python3 tools/hub_networks.py FOLDER [NAME...]``.

Exports them to ONNX by PyTorch's exporter, with seeded random weights and few layers, so that nothing is downloaded:
encoders of pictures, films, speech and text, depth, segmentation, detection, poses, codecs of sound, and the parts of
latent diffusion.  ``polyconv bench --networks FOLDER/*.onnx`` runs them beside other engines.  Needs ``pip install
torch==2.13.0 torchvision transformers diffusers onnx onnxscript``, in an environment of its own if need be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporting import declared, export_all, written

_SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
_TINY = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
_DINO = {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 6}
_SPEECH = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536}
_TEXT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_SOUND = {"encoder_hidden_size": 32, "decoder_hidden_size": 512}


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


def _alone(network: Any, *given: Any) -> Any:
    """The one result of a network that returns no tuple."""
    return network(*given)


def _backbone(t: Any, *stages: int) -> dict[str, Any]:
    """A ResNet-18 of which a detector reads some stages."""
    resnet = t.ResNetConfig(depths=[2] * 4, layer_type="basic", hidden_sizes=[64, 128, 256, 512],
                            out_features=[f"stage{stage}" for stage in stages])  # fmt: skip
    return {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": resnet}


def _detr(t: Any) -> dict[str, Any]:
    return {**_backbone(t, 4), "encoder_layers": 3, "decoder_layers": 3, "num_queries": 50}


def _rt_detr(t: Any) -> dict[str, Any]:
    resnet = t.RTDetrResNetConfig(depths=[2] * 4, layer_type="basic", hidden_sizes=[64, 128, 256, 512],
                                  out_features=["stage2", "stage3", "stage4"])  # fmt: skip
    return {"backbone_config": resnet, "encoder_in_channels": [128, 256, 512], "num_queries": 100}


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
    "rt_detr": Hub("RTDetrForObjectDetection", "RTDetrConfig", _rt_detr, _picture(320)),
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
    "bert_small": Hub("BertModel", "BertConfig", lambda t: _TEXT, [(-1, 128)]),
    "whisper_encoder": Hub("WhisperModel", "WhisperConfig", lambda t: {}, [(1, 80, 3000)], "encoder"),
    "wav2vec2_small": Hub("Wav2Vec2Model", "Wav2Vec2Config", lambda t: _SPEECH, [(1, 32000)]),
    "hubert_small": Hub("HubertModel", "HubertConfig", lambda t: {**_SPEECH, "hidden_size": 256,
                                                                 "num_attention_heads": 4}, [(1, 32000)]),
    "encodec_encoder": Hub("EncodecModel", "EncodecConfig", lambda t: {}, [(1, 1, 24000)], "encoder", _alone),
    "encodec_decoder": Hub("EncodecModel", "EncodecConfig", lambda t: {}, [(1, 128, 75)], "decoder", _alone),
    "detr": Hub("DetrForObjectDetection", "DetrConfig", _detr, _picture(320)),
    "conditional_detr": Hub("ConditionalDetrForObjectDetection", "ConditionalDetrConfig", _detr, _picture(320)),
    "deformable_detr": Hub(
        "DeformableDetrForObjectDetection", "DeformableDetrConfig",
        lambda t: {**_backbone(t, 2, 3, 4), "encoder_layers": 2, "decoder_layers": 2, "num_queries": 50,
                   "num_feature_levels": 4, "disable_custom_kernels": True}, _picture(256)),
    "dpt": Hub("DPTForDepthEstimation", "DPTConfig",
               lambda t: {**_SMALL, "image_size": 256, "num_hidden_layers": 8, "backbone_out_indices": [1, 3, 5, 7],
                          "neck_hidden_sizes": [48, 96, 192, 384], "is_hybrid": False, "fusion_hidden_size": 128},
               _picture(256)),
    "vitpose": Hub(
        "VitPoseForPoseEstimation", "VitPoseConfig",
        lambda t: {"backbone_config": t.VitPoseBackboneConfig(
            hidden_size=192, num_hidden_layers=4, num_attention_heads=3, out_indices=[4], out_features=["stage4"])},
        [(1, 3, 256, 192)]),
    "focalnet": Hub("FocalNetModel", "FocalNetConfig", lambda t: {"embed_dim": 64, "depths": [2, 2, 4, 2]},
                    _picture(224)),
    "cvt": Hub("CvtModel", "CvtConfig",
               lambda t: {"embed_dim": [32, 96, 192], "num_heads": [1, 3, 6], "depth": [1, 2, 4]}, _picture(224)),
    "swinv2": Hub("Swinv2Model", "Swinv2Config",
                  lambda t: {"embed_dim": 48, "depths": [2, 2, 2, 2], "window_size": 8, "image_size": 256},
                  _picture(256)),
    "hiera": Hub("HieraModel", "HieraConfig", lambda t: {"embed_dim": 48, "depths": [1, 2, 4, 1]}, _picture(224)),
    "beit": Hub("BeitModel", "BeitConfig", lambda t: {**_TINY, "use_relative_position_bias": True}, _picture(224)),
    "siglip": Hub("SiglipVisionModel", "SiglipVisionConfig", lambda t: _SMALL, _picture(224)),
    "mgp_str": Hub("MgpstrModel", "MgpstrConfig", lambda t: _TINY, [(1, 3, 32, 128)]),
    "videomae": Hub("VideoMAEModel", "VideoMAEConfig", lambda t: {**_TINY, "num_frames": 8, "image_size": 112},
                    [(1, 8, 3, 112, 112)]),
    "timesformer": Hub("TimesformerModel", "TimesformerConfig",
                       lambda t: {**_TINY, "num_frames": 4, "image_size": 112, "num_hidden_layers": 3},
                       [(1, 4, 3, 112, 112)]),
    "ast": Hub("ASTModel", "ASTConfig", lambda t: {**_TINY, "max_length": 512}, [(1, 512, 128)]),
    "speecht5_hifigan": Hub("SpeechT5HifiGan", "SpeechT5HifiGanConfig", lambda t: {"upsample_initial_channel": 256},
                            [(1, 60, 80)], run=_alone),
    "w2v2_conformer": Hub("Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig",
                          lambda t: {**_SPEECH, "position_embeddings_type": "relative"}, [(1, 32000)]),
    "dac_encoder": Hub("DacModel", "DacConfig", lambda t: _SOUND, [(1, 1, 22050)], "encoder", _alone),
    "dac_decoder": Hub("DacModel", "DacConfig", lambda t: _SOUND, [(1, 512, 64)], "decoder", _alone),
    "t5_encoder": Hub("T5EncoderModel", "T5Config",
                      lambda t: {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 4},
                      [(-1, 128)]),
    "deberta": Hub("DebertaV2Model", "DebertaV2Config",
                   lambda t: {**_TEXT, "num_hidden_layers": 3, "relative_attention": True,
                              "pos_att_type": ["c2p", "p2c"]}, [(-1, 128)]),
    "modernbert": Hub("ModernBertModel", "ModernBertConfig", lambda t: {**_TEXT, "intermediate_size": 512},
                      [(-1, 128)]),
    "albert": Hub("AlbertModel", "AlbertConfig", lambda t: _TEXT, [(-1, 128)]),
    "squeezebert": Hub("SqueezeBertModel", "SqueezeBertConfig", lambda t: {**_TEXT, "embedding_size": 256},
                       [(-1, 128)]),
}  # fmt: skip

_SWIN = {"embed_dim": 48, "depths": [2, 2, 2, 2], "out_features": ["stage1", "stage2", "stage3", "stage4"]}


def _masks(network: Any, x: Any) -> Any:
    return network(x).masks_queries_logits


def _depth(network: Any, x: Any) -> Any:
    return network(x).predicted_depth


def _states(network: Any, x: Any) -> Any:
    return network(x).last_hidden_state


def _beit(t: Any) -> Any:
    return t.BeitConfig(**_TINY, image_size=256, use_relative_position_bias=True, reshape_hidden_states=False,
                        out_features=["stage2", "stage3", "stage5", "stage6"])  # fmt: skip


def _hybrid(t: Any) -> dict[str, Any]:
    """A depth network whose first stages are a ResNet."""
    bit = t.BitConfig(layer_type="bottleneck", depths=[2, 2, 4], out_features=["stage1", "stage2", "stage3"],
                      embedding_dynamic_padding=True, global_padding="SAME")  # fmt: skip
    return {**_TINY, "is_hybrid": True, "image_size": 256, "backbone_out_indices": [0, 1, 4, 5],
            "neck_hidden_sizes": [256, 512, 192, 192], "fusion_hidden_size": 128, "backbone_config": bit}  # fmt: skip


MORE: Mapping[str, Hub] = {
    "mobilenet_v1_tf": Hub("MobileNetV1Model", "MobileNetV1Config", lambda t: {}, _picture(224)),
    "mobilenet_v2_tf": Hub("MobileNetV2ForSemanticSegmentation", "MobileNetV2Config", lambda t: {}, _picture(256)),
    "bit": Hub("BitModel", "BitConfig", lambda t: {"depths": [2, 2, 2, 2]}, _picture(224)),
    "levit": Hub("LevitModel", "LevitConfig", lambda t: {}, _picture(224)),
    "pvt": Hub("PvtModel", "PvtConfig", lambda t: {}, _picture(224)),
    "swiftformer": Hub("SwiftFormerModel", "SwiftFormerConfig", lambda t: {"depths": [2, 2, 4, 2]}, _picture(224)),
    "textnet": Hub("TextNetModel", "TextNetConfig", lambda t: {}, _picture(320)),
    "vitmatte": Hub(
        "VitMatteForImageMatting", "VitMatteConfig",
        lambda t: {"backbone_config": t.VitDetConfig(hidden_size=192, num_hidden_layers=4, num_attention_heads=3,
                                                     image_size=256, out_features=["stage4"], num_channels=4),
                   "hidden_size": 192, "fusion_hidden_sizes": [128, 64, 32, 16]},
        [(1, 4, 256, 256)], run=lambda network, x: network(x).alphas),
    "zoedepth": Hub(
        "ZoeDepthForDepthEstimation", "ZoeDepthConfig",
        lambda t: {"backbone_config": _beit(t), "neck_hidden_sizes": [48, 96, 192, 192], "fusion_hidden_size": 96,
                   "bottleneck_features": 96}, _picture(256), run=_depth),
    "dpt_hybrid": Hub("DPTForDepthEstimation", "DPTConfig", _hybrid, _picture(256), run=_depth),
    "dab_detr": Hub("DabDetrForObjectDetection", "DabDetrConfig", _detr, _picture(320)),
    "d_fine": Hub("DFineForObjectDetection", "DFineConfig", lambda t: {"num_queries": 100, "decoder_layers": 3},
                  _picture(320)),
    "rt_detr_v2": Hub("RTDetrV2ForObjectDetection", "RTDetrV2Config", _rt_detr, _picture(320)),
    "clipseg": Hub("CLIPSegVisionModel", "CLIPSegVisionConfig", lambda t: _TINY, _picture(224)),
    "owlvit": Hub("OwlViTVisionModel", "OwlViTVisionConfig", lambda t: {**_TINY, "image_size": 384}, _picture(384)),
    "donut_swin": Hub("DonutSwinModel", "DonutSwinConfig",
                      lambda t: {"image_size": [256, 256], "embed_dim": 48, "depths": [2, 2, 2, 2]}, _picture(256)),
    "vivit": Hub("VivitModel", "VivitConfig", lambda t: {**_TINY, "num_frames": 8, "image_size": 112},
                 [(1, 8, 3, 112, 112)]),
    "vit_msn": Hub("ViTMSNModel", "ViTMSNConfig", lambda t: _TINY, _picture(224)),
    "dinov3_convnext": Hub("DINOv3ConvNextModel", "DINOv3ConvNextConfig",
                           lambda t: {"hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 4, 2]}, _picture(224),
                           run=_states),
    "hgnet_v2": Hub("HGNetV2Backbone", "HGNetV2Config", lambda t: {}, _picture(224),
                    run=lambda network, x: network(x).feature_maps[-1]),
    "maskformer": Hub(
        "MaskFormerForInstanceSegmentation", "MaskFormerConfig",
        lambda t: {"backbone_config": t.SwinConfig(**_SWIN), "fpn_feature_size": 128, "mask_feature_size": 128},
        _picture(256), run=_masks),
    "mask2former": Hub(
        "Mask2FormerForUniversalSegmentation", "Mask2FormerConfig",
        lambda t: {"backbone_config": t.SwinConfig(**_SWIN), "feature_size": 128, "mask_feature_size": 128,
                   "hidden_dim": 128, "num_queries": 50, "decoder_layers": 3, "encoder_layers": 2,
                   "dim_feedforward": 256, "encoder_feedforward_dim": 256, "num_attention_heads": 4},
        _picture(256), run=_masks),
    "sew": Hub("SEWModel", "SEWConfig", lambda t: _SPEECH, [(1, 32000)]),
    "wavlm": Hub("WavLMModel", "WavLMConfig", lambda t: _SPEECH, [(1, 32000)]),
    "data2vec_audio": Hub("Data2VecAudioModel", "Data2VecAudioConfig", lambda t: _SPEECH, [(1, 32000)]),
    "unispeech_sat": Hub("UniSpeechSatModel", "UniSpeechSatConfig", lambda t: _SPEECH, [(1, 32000)]),
    "parakeet": Hub("ParakeetEncoder", "ParakeetEncoderConfig",
                    lambda t: {**_TEXT, "hidden_size": 256}, [(1, 400, 80)]),
    "clap_audio": Hub(
        "ClapAudioModel", "ClapAudioConfig",
        lambda t: {"patch_embeds_hidden_size": 48, "depths": [2, 2, 2, 2], "num_attention_heads": [2, 4, 8, 16],
                   "hidden_size": 384}, [(1, 1, 1001, 64)], run=_states),
    "speech2text": Hub("Speech2TextModel", "Speech2TextConfig",
                       lambda t: {"d_model": 256, "encoder_layers": 4, "encoder_attention_heads": 4,
                                  "encoder_ffn_dim": 1024}, [(1, 400, 80)], "encoder"),
    "fastspeech2_hifigan": Hub("FastSpeech2ConformerHifiGan", "FastSpeech2ConformerHifiGanConfig",
                               lambda t: {"upsample_initial_channel": 256}, [(1, 60, 80)], run=_alone),
    "vits_decoder": Hub("VitsModel", "VitsConfig", lambda t: {"upsample_initial_channel": 256}, [(1, 192, 60)],
                        "decoder", _alone),
    "convbert": Hub("ConvBertModel", "ConvBertConfig", lambda t: {**_TEXT, "embedding_size": 256}, [(-1, 128)]),
    "distilbert": Hub("DistilBertModel", "DistilBertConfig",
                      lambda t: {"dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024}, [(-1, 128)]),
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
    "video_unet": Hub(
        "UNet3DConditionModel", "",
        lambda d: {"sample_size": 16, "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 64,
                   "attention_head_dim": 8, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
                   "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
        [(1, 4, 8, 16, 16), (1,), (1, 10, 64)], run=lambda network, x, at, text: network(x, at, text).sample),
    "pixart": Hub(
        "PixArtTransformer2DModel", "",
        lambda d: {"num_attention_heads": 6, "attention_head_dim": 32, "num_layers": 4, "sample_size": 32,
                   "cross_attention_dim": 192, "caption_channels": 64, "in_channels": 4, "out_channels": 4,
                   "use_additional_conditions": False},
        [(1, 4, 32, 32), (1, 20, 64), (1,)], run=lambda network, x, text, at: network(x, text, at).sample),
    "vq_decoder": Hub("VQModel", "",
                      lambda d: {name: _VAE[name] for name in _VAE if name != "layers_per_block"}, [(1, 4, 32, 32)],
                      run=lambda network, z: network.decode(z, force_not_quantize=True).sample),
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
    hub = (TRANSFORMERS | MORE | DIFFUSERS)[name]
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
    return written(Run().eval(), given, folder, name, torch)


if __name__ == "__main__":
    sys.exit(export_all(__doc__, [*TRANSFORMERS, *MORE, *DIFFUSERS], prepared))
