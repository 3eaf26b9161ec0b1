"""Networks to measure and test whole models on, as ONNX files: ``python3 tools/networks.py FOLDER [NAME...]``.

Published architectures with seeded random weights, written by torch.onnx as users' files are; ``NAME_bn`` leaves
BatchNormalization unfolded, ``NAME_qdq`` and ``NAME_qlinear`` are quantised by onnxruntime.quantization: a few networks
by default, all of them by ``--quantised`` or by name.  ``--batch N`` makes larger batches, ``--dynamic`` leaves batch
and sizes open; ``--ir`` writes what OpenVINO makes of such a file, an IR with weights of 16 bits.  Needs torch, onnx,
onnxruntime and openvino (polyconv[bench]).
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

OPSET = 17
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@dataclass(frozen=True)
class Network:
    """How to make a network, the shape of an input of batch 1, and the forms that are written beside the plain one."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    forms: tuple[str, ...] = ()


class Sum(nn.Module):
    """Branches of one input, added."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        first, *rest = (branch(x) for branch in self.branches)
        for other in rest:
            first = first + other
        return first


class Cat(Sum):
    """Branches of one input, side by side as channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class Gate(nn.Sequential):
    """An input times what its layers make of it."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return x * super().forward(x)


class Last(nn.Sequential):
    """Layers that see the channels as the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        """Move the channels to the end and back."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def seq(*layers: nn.Module | None) -> nn.Sequential:
    """Layers one after another; None is no layer."""
    return nn.Sequential(*(layer for layer in layers if layer is not None))


def conv(c: int, m: int, k: int = 3, s: int = 1, act: nn.Module | None = None, *, g: int = 1, d: int = 1,
         norm: bool = True, rank: int = 2) -> nn.Sequential:  # fmt: skip
    """A convolution, its normalisation and its activation."""
    layer = CONVS[rank](c, m, k, s, (k - 1) * d // 2, d, g, bias=not norm)
    return seq(layer, NORMS[rank](m) if norm else None, act)


def head(c: int, classes: int = 1000, *between: nn.Module) -> tuple[nn.Module, ...]:
    """What ends a classifier: the mean of each channel, and a product."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(1), *between, nn.Linear(c, classes)


def resnet(blocks: tuple[int, ...], *, bottleneck: bool) -> nn.Module:
    """ResNet (He et al. 2015): basic blocks, or 1x1, 3x3, 1x1."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2, nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        m = 4 * width if bottleneck else width
        for index in range(count):
            s = 2 if stage and not index else 1
            if bottleneck:
                branch = seq(conv(c, width, 1, 1, nn.ReLU()), conv(width, width, 3, s, nn.ReLU()), conv(width, m, 1))
            else:
                branch = seq(conv(c, width, 3, s, nn.ReLU()), conv(width, m))
            layers += [Sum(branch, nn.Identity() if c == m else conv(c, m, 1, s)), nn.ReLU()]
            c = m
    return seq(*layers, *head(c))


def vgg16() -> nn.Module:
    """VGG-16 (Simonyan, Zisserman 2014)."""
    layers: list[nn.Module] = []
    c = 3
    for m, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(conv(c, m, 3, 1, nn.ReLU(), norm=False))
            c = m
        layers.append(nn.MaxPool2d(2, 2))
    dense = [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return seq(*layers, nn.Flatten(1), *dense)


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 (Sandler et al. 2018)."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2, nn.ReLU6())]
    c = 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for t, m, count, stride in rows:
        for index in range(count):
            s, wide = (1 if index else stride), t * c
            expand = conv(c, wide, 1, 1, nn.ReLU6()) if t > 1 else None
            block = seq(expand, conv(wide, wide, 3, s, nn.ReLU6(), g=wide), conv(wide, m, 1))
            layers.append(Sum(nn.Identity(), block) if s == 1 and c == m else block)
            c = m
    return seq(*layers, conv(c, 1280, 1, 1, nn.ReLU6()), *head(1280))


def mobilenet_v3_large() -> nn.Module:
    """MobileNetV3-Large (Howard et al. 2019)."""
    r, h = nn.ReLU(), nn.Hardswish()
    rows = (
        (3, 16, 16, 0, r, 1), (3, 64, 24, 0, r, 2), (3, 72, 24, 0, r, 1), (5, 72, 40, 1, r, 2), (5, 120, 40, 1, r, 1),
        (5, 120, 40, 1, r, 1), (3, 240, 80, 0, h, 2), (3, 200, 80, 0, h, 1), (3, 184, 80, 0, h, 1),
        (3, 184, 80, 0, h, 1), (3, 480, 112, 1, h, 1), (3, 672, 112, 1, h, 1), (5, 672, 160, 1, h, 2),
        (5, 960, 160, 1, h, 1), (5, 960, 160, 1, h, 1),
    )  # fmt: skip
    layers: list[nn.Module] = [conv(3, 16, 3, 2, h)]
    c = 16
    for k, wide, m, squeezed, act, s in rows:
        few = (wide // 4 + 7) // 8 * 8
        squeeze = Gate(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, few, 1), nn.ReLU(), nn.Conv2d(few, wide, 1), nn.Hardsigmoid()
        )
        expand = conv(c, wide, 1, 1, act) if wide != c else None
        block = seq(expand, conv(wide, wide, k, s, act, g=wide), squeeze if squeezed else None, conv(wide, m, 1))
        layers.append(Sum(nn.Identity(), block) if s == 1 and c == m else block)
        c = m
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))
    return seq(*layers, conv(c, 960, 1, 1, h), *pool)


class Scale(nn.Module):
    """A factor per channel, which is the first axis."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((c, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return self.factor * x


def convnext_tiny() -> nn.Module:
    """ConvNeXt-T (Liu et al. 2022)."""
    widths, counts = (96, 192, 384, 768), (3, 3, 9, 3)
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), Last(nn.LayerNorm(96, 1e-6))]
    for stage, (c, count) in enumerate(zip(widths, counts, strict=True)):
        if stage:
            layers += [Last(nn.LayerNorm(c // 2, 1e-6)), nn.Conv2d(c // 2, c, 2, 2)]
        for _ in range(count):
            dense = Last(nn.LayerNorm(c, 1e-6), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
            layers.append(Sum(nn.Identity(), seq(nn.Conv2d(c, c, 7, 1, 3, 1, c), dense, Scale(c))))
    return seq(*layers, nn.AdaptiveAvgPool2d(1), Last(nn.LayerNorm(768, 1e-6)), nn.Flatten(1), nn.Linear(768, 1000))


def densenet121() -> nn.Module:
    """DenseNet-121 (Huang et al. 2017)."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2, nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for stage, count in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
            c //= 2
        for _ in range(count):
            narrow = conv(c, 128, 1, 1, nn.ReLU())
            new = seq(nn.BatchNorm2d(c), nn.ReLU(), narrow, nn.Conv2d(128, 32, 3, 1, 1, bias=False))
            layers.append(Cat(nn.Identity(), new))
            c += 32
    return seq(*layers, nn.BatchNorm2d(c), nn.ReLU(), *head(c))


def unet2d(base: int = 64) -> nn.Module:
    """U-Net (Ronneberger et al. 2015) with padding, normalisation and bilinear upsampling."""

    def double(c: int, m: int) -> nn.Module:
        return seq(conv(c, m, 3, 1, nn.ReLU()), conv(m, m, 3, 1, nn.ReLU()))

    inside: nn.Module = double(8 * base, 8 * base)
    for level in (3, 2, 1, 0):
        c, wide, narrow = (base << level) // 2 if level else 3, base << level, (base << level) // (2 if level else 1)
        up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        inside = seq(double(c, wide), Cat(nn.Identity(), seq(nn.MaxPool2d(2), inside, up)), double(2 * wide, narrow))
    return seq(inside, nn.Conv2d(base, 2, 1))


def unet3d(base: int = 32) -> nn.Module:
    """3-D U-Net (Cicek et al. 2016) without normalisation, by transposed convolutions."""

    def double(c: int, m: int) -> nn.Module:
        return seq(conv(c, m, 3, 1, nn.ReLU(), norm=False, rank=3), conv(m, m, 3, 1, nn.ReLU(), norm=False, rank=3))

    inside: nn.Module = double(8 * base, 16 * base)
    for level in (3, 2, 1, 0):
        wide = base << level
        up = seq(nn.MaxPool3d(2), inside, nn.ConvTranspose3d(2 * wide, wide, 2, 2))
        inside = seq(double(wide // 2 if level else 1, wide), Cat(nn.Identity(), up), double(2 * wide, wide))
    return seq(inside, nn.Conv3d(base, 3, 1))


class CSP(nn.Module):
    """YOLOv8's C2f: two halves, of which one goes through bottlenecks whose results are all kept."""

    def __init__(self, c: int, m: int, count: int, *, added: bool) -> None:
        super().__init__()
        half = m // 2
        self.first, self.last = conv(c, m, 1, 1, nn.SiLU()), conv((2 + count) * half, m, 1, 1, nn.SiLU())
        pairs = [seq(conv(half, half, 3, 1, nn.SiLU()), conv(half, half, 3, 1, nn.SiLU())) for _ in range(count)]
        self.inner = nn.ModuleList(Sum(nn.Identity(), pair) if added else pair for pair in pairs)

    def forward(self, x: Tensor) -> Tensor:
        """Split, transform, concatenate."""
        parts = list(self.first(x).chunk(2, 1))
        for block in self.inner:
            parts.append(block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """YOLOv8's SPPF: three poolings, each of the one before."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.first, self.last = conv(c, c // 2, 1, 1, nn.SiLU()), conv(2 * c, c, 1, 1, nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        """Pool and concatenate."""
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """A detector like YOLOv8n (Ultralytics 2023): backbone, two-way pyramid, heads of three sizes."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.SiLU()

        def down(c: int, m: int) -> nn.Module:
            return conv(c, m, 3, 2, act)

        self.fine = seq(down(3, 16), down(16, 32), CSP(32, 32, 1, added=True), down(32, 64), CSP(64, 64, 2, added=True))
        self.middle = seq(down(64, 128), CSP(128, 128, 2, added=True))
        self.coarse = seq(down(128, 256), CSP(256, 256, 1, added=True), Pyramid(256))
        self.up1, self.up2 = CSP(384, 128, 1, added=False), CSP(192, 64, 1, added=False)
        self.step1, self.step2 = down(64, 64), down(128, 128)
        self.down1, self.down2 = CSP(192, 128, 1, added=False), CSP(384, 256, 1, added=False)
        self.boxes = nn.ModuleList(self._head(c, 64, 64) for c in (64, 128, 256))
        self.classes = nn.ModuleList(self._head(c, 80, 80) for c in (64, 128, 256))

    @staticmethod
    def _head(c: int, wide: int, m: int) -> nn.Module:
        return seq(conv(c, wide, 3, 1, nn.SiLU()), conv(wide, wide, 3, 1, nn.SiLU()), nn.Conv2d(wide, m, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Boxes as expected distances, and scores, of all places."""
        fine = self.fine(x)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        between = self.up1(torch.cat([F.interpolate(coarse, scale_factor=2), middle], 1))
        p3 = self.up2(torch.cat([F.interpolate(between, scale_factor=2), fine], 1))
        p4 = self.down1(torch.cat([self.step1(p3), between], 1))
        p5 = self.down2(torch.cat([self.step2(p4), coarse], 1))
        found = [torch.cat([b(p), c(p)], 1) for p, b, c in zip((p3, p4, p5), self.boxes, self.classes, strict=True)]
        boxes, scores = torch.cat([f.view(f.shape[0], 144, -1) for f in found], 2).split((64, 80), 1)
        n, _, places = boxes.shape
        bins = torch.arange(16, dtype=torch.float32).view(1, 16, 1, 1)
        distances = (boxes.view(n, 4, 16, places).transpose(2, 1).softmax(1) * bins).sum(1)
        return torch.cat([distances, scores.sigmoid()], 1)


def espcn() -> nn.Module:
    """ESPCN (Shi et al. 2016), x3."""
    return seq(conv(1, 64, 5, 1, nn.Tanh(), norm=False), conv(64, 32, 3, 1, nn.Tanh(), norm=False),
               conv(32, 9, 3, norm=False), nn.PixelShuffle(3))  # fmt: skip


def edsr() -> nn.Module:
    """EDSR baseline (Lim et al. 2017), x2."""

    def plain(c: int, m: int, act: nn.Module | None = None) -> nn.Module:
        return conv(c, m, 3, 1, act, norm=False)

    blocks = [Sum(nn.Identity(), seq(plain(64, 64, nn.ReLU()), plain(64, 64))) for _ in range(16)]
    body = Sum(nn.Identity(), seq(*blocks, plain(64, 64)))
    return seq(plain(3, 64), body, plain(64, 256), nn.PixelShuffle(2), plain(64, 3))


def dcgan() -> nn.Module:
    """DCGAN's generator (Radford et al. 2015)."""
    layers: list[nn.Module] = []
    for c, m, s, p in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
        layers += [nn.ConvTranspose2d(c, m, 4, s, p, bias=False), nn.BatchNorm2d(m), nn.ReLU()]
    return seq(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


class Mean(Sum):
    """Branches of one input, their mean."""

    def forward(self, x: Tensor) -> Tensor:
        """Add and divide."""
        return super().forward(x) / len(self.branches)


def hifigan() -> nn.Module:
    """HiFi-GAN V1's generator (Kong et al. 2020)."""

    def wide(c: int, k: int, d: int) -> nn.Module:
        return seq(nn.LeakyReLU(0.1), nn.Conv1d(c, c, k, 1, (k - 1) * d // 2, d))

    layers: list[nn.Module] = [nn.Conv1d(80, 512, 7, 1, 3)]
    c = 512
    for s, k in ((8, 16), (8, 16), (2, 4), (2, 4)):
        layers += [nn.LeakyReLU(0.1), nn.ConvTranspose1d(c, c // 2, k, s, (k - s) // 2)]
        c //= 2
        rows = [[Sum(nn.Identity(), seq(wide(c, k, d), wide(c, k, 1))) for d in (1, 3, 5)] for k in (3, 7, 11)]
        layers.append(Mean(*(seq(*row) for row in rows)))
    return seq(*layers, nn.LeakyReLU(), nn.Conv1d(c, 1, 7, 1, 3), nn.Tanh())


class Chomp(nn.Module):
    """All but the last samples."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        """Slice."""
        return x[:, :, : -self.count].contiguous()


def tcn() -> nn.Module:
    """A temporal convolutional network (Bai et al. 2018): eight levels, causal by cutting what is ahead."""
    layers: list[nn.Module] = []
    c = 32
    for level in range(8):
        m, pad = 128, 2 << level
        causal = [(nn.Conv1d(n, m, 3, 1, pad, 1 << level), Chomp(pad), nn.ReLU()) for n in (c, m)]
        layers += [Sum(seq(*causal[0], *causal[1]), nn.Identity() if c == m else nn.Conv1d(c, m, 1)), nn.ReLU()]
        c = m
    return seq(*layers, nn.Conv1d(c, 10, 1))


def wav2vec2() -> nn.Module:
    """The encoder of features of wav2vec 2.0 (Baevski et al. 2020)."""
    layers: list[nn.Module] = [nn.Conv1d(1, 512, 10, 5, bias=False), nn.GroupNorm(512, 512), nn.GELU()]
    for k in (3, 3, 3, 3, 2, 2):
        layers += [nn.Conv1d(512, 512, k, 2, bias=False), nn.GELU()]
    return seq(*layers)


NETWORKS = {
    "resnet18": Network(lambda: resnet((2, 2, 2, 2), bottleneck=False), (3, 224, 224), ("bn", "qdq", "qlinear")),
    "resnet50": Network(lambda: resnet((3, 4, 6, 3), bottleneck=True), (3, 224, 224), ("bn",)),
    "vgg16": Network(vgg16, (3, 224, 224)),
    "mobilenet_v2": Network(mobilenet_v2, (3, 224, 224), ("bn", "qdq", "qlinear")),
    "mobilenet_v3_large": Network(mobilenet_v3_large, (3, 224, 224), ("bn",)),
    "convnext_tiny": Network(convnext_tiny, (3, 224, 224)),
    "densenet121": Network(densenet121, (3, 224, 224), ("bn",)),
    "unet2d": Network(unet2d, (3, 256, 256), ("bn",)),
    "unet3d": Network(unet3d, (1, 64, 64, 64)),
    "yolov8n_like": Network(Yolo, (3, 640, 640)),
    "espcn": Network(espcn, (1, 180, 240)),
    "edsr": Network(edsr, (3, 96, 96)),
    "dcgan": Network(dcgan, (100, 1, 1)),
    "hifigan": Network(hifigan, (80, 32)),
    "tcn": Network(tcn, (32, 1000)),
    "wav2vec2": Network(wav2vec2, (1, 16000)),
}  # fmt: skip

QUANTISED = {"qdq": ("QDQ", True), "qlinear": ("QOperator", True), "tensor": ("QDQ", False)}
"""Forms that every network has: how onnxruntime writes them, and whether each output channel has a scale of its own, or
all weights of a layer have one, as is onnxruntime's default."""


def main(arguments: list[str]) -> int:
    """Write the files; print their names."""
    usual = [f"{n}_{form}" if form else n for n, row in NETWORKS.items() for form in ("", *row.forms)]
    quantised = [f"{n}_{form}" for n in NETWORKS for form in QUANTISED]
    names = sorted({*usual, *quantised})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--ir", action="store_true", help="IRs of OpenVINO, .xml and .bin")
    parser.add_argument("--quantised", action="store_true", help="all networks, quantised, where none is named")
    parser.add_argument("--light", action="store_true", help="also the light models of the package onnx")
    given = parser.parse_args(arguments)
    if unknown := set(given.name) - set(names):
        parser.error(f"there is no network {min(unknown)}; choose from {', '.join(names)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.name or (quantised if given.quantised else usual):
        suffix = (f"_b{given.batch}" if given.batch > 1 else "") + ("_any" if given.dynamic else "")
        path = given.folder / f"{name}{suffix}.{'xml' if given.ir else 'onnx'}"
        (write_ir if given.ir else write)(name, path, given.batch, dynamic=given.dynamic)
        print(path)
    for path in light() if given.light else ():
        print(shutil.copy(path, given.folder))
    return 0


def light() -> Iterator[Path]:
    """The models that the package onnx is tested with; their weights are single numbers."""
    return (Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx")


def write(name: str, path: Path, batch: int = 1, *, dynamic: bool = False) -> None:
    """Write a network's file."""
    base, _, form = name.rpartition("_")
    if base not in NETWORKS or form not in (*NETWORKS[base].forms, *QUANTISED):
        base, form = name, ""
    row = NETWORKS[base]
    if form in ("", "bn"):
        export(seeded(row.make()), path, (batch, *row.shape), folded=form == "", dynamic=dynamic)
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.onnx"
        export(seeded(row.make()), plain, (batch, *row.shape), folded=True, dynamic=dynamic)
        quantise(plain, path, (batch, *row.shape), form)


def write_ir(name: str, path: Path, batch: int = 1, *, dynamic: bool = False) -> None:
    """Write a network as OpenVINO does, beside its .bin file."""
    import openvino  # here, as files of ONNX need none

    with tempfile.TemporaryDirectory() as folder:
        onnx_file = Path(folder) / "network.onnx"
        write(name, onnx_file, batch, dynamic=dynamic)
        openvino.save_model(openvino.convert_model(onnx_file), path, compress_to_fp16=True)


def seeded(model: nn.Module) -> nn.Module:
    """Random weights that keep values of one size through the network, and statistics as after training."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                inputs = module.weight[0].numel()
                if isinstance(module, nn.modules.conv._ConvTransposeNd):
                    inputs = module.weight.shape[0] * module.weight[0, 0].numel() // int(np.prod(module.stride))
                module.weight.normal_(0, (1.6 / inputs) ** 0.5, generator=g)
                if module.bias is not None:
                    module.bias.normal_(0, 0.1, generator=g)
            elif isinstance(module, nn.modules.batchnorm._BatchNorm):
                for values in (module.bias, module.running_mean):
                    values.uniform_(-0.2, 0.2, generator=g)
                for values in (module.weight, module.running_var):
                    values.uniform_(0.6, 1.4, generator=g)
    return model.eval()


def export(model: nn.Module, path: Path, shape: tuple[int, ...], *, folded: bool, dynamic: bool) -> None:
    """Write a module as torch.onnx does, with BatchNormalization folded into weights or not."""
    mode = torch.onnx.TrainingMode.EVAL if folded else torch.onnx.TrainingMode.PRESERVE
    axes = {"x": {a: f"x{a}" for a in range(len(shape)) if a != 1}, "y": {0: "x0"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, torch.zeros(shape), path, dynamo=False, opset_version=OPSET, training=mode, input_names=["x"],
            do_constant_folding=folded, output_names=["y"], dynamic_axes=axes,
        )  # fmt: skip


def quantise(plain: Path, path: Path, shape: tuple[int, ...], form: str) -> None:
    """Quantise to 8 bits, with ranges of a few random inputs."""
    from onnxruntime import quantization as q

    logging.disable(logging.WARNING)  # it advises to prepare a model that torch has prepared

    class Samples(q.CalibrationDataReader):  # type: ignore[misc]
        """Random inputs."""

        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.left: list[dict[str, Any]] = [{"x": rng.random(shape, np.float32)} for _ in range(4)]

        def get_next(self) -> dict[str, Any] | None:
            """The next one."""
            return self.left.pop() if self.left else None

    kind, by_channel = QUANTISED[form]
    q.quantize_static(
        plain, path, Samples(), quant_format=q.QuantFormat[kind], per_channel=by_channel,
        activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
