"""Sets everything up and filters a photograph, from an ONNX model and from an OpenVINO IR.

``python3 tools/demo.py [FOLDER]`` installs the checkout into .venv, makes the models and the photograph,
runs both through ``polyconv run``, compares what they make and draws a sheet of it.  Everything it makes lies in FOLDER
(demo-output by default).
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from environment import ROOT, environment


def main() -> int:
    """Run the steps; the first failure ends it."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "demo-output").resolve()
    python = environment("cli", "onnx", "openvino", "examples")

    def step(*words: object, shown: str = "python") -> None:
        spelled = [str(word) for word in words]
        print(f"\n$ {shown} {shlex.join(spelled)}", flush=True)
        command = [str(python), "-m", "polyconv.cli"] if shown == "polyconv" else [str(python)]
        code = subprocess.run([*command, *spelled], cwd=ROOT, check=False).returncode
        if code:
            sys.exit(code)

    step("examples/make_filter_bank.py", out)
    for model, images in (("filter_bank.onnx", "onnx"), ("filter_bank.xml", "openvino")):
        words = ["--input", f"image={out / 'photo.png'}", "--save", out / images, "--no-images", "--repeat", 15]
        step("run", out / model, *words, shown="polyconv")
    step("examples/compare_outputs.py", out / "onnx", out / "openvino")
    step("examples/contact_sheet.py", out)
    print(f"\nLook at {out / 'contact-sheet.png'}; the pictures alone are in {out / 'pictures'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
