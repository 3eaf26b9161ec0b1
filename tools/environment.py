"""A virtual environment with this checkout and what a command of the README needs in it.

``python3 tools/environment.py EXTRA...`` makes .venv (or the folder that POLYCONV_VENV names) and
installs the checkout, editable, with these extras; a second call with the same ones does nothing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)


def environment(*extras: str) -> Path:
    """Make the environment ready and return its Python."""
    if sys.version_info < OLDEST:
        sys.exit(f"polyconv needs Python {OLDEST[0]}.{OLDEST[1]} or newer; this is {sys.version.split()[0]}")
    folder = Path(os.environ.get("POLYCONV_VENV") or ROOT / ".venv")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        print(f"making {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=folder.exists())
    wanted = f"{ROOT}[{','.join(sorted(extras))}]" if extras else str(ROOT)
    installed = folder / "polyconv-installed"
    state = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    done = installed.read_text().splitlines() if installed.exists() else []
    if f"{state} {wanted}" not in done:
        print(f"installing {wanted}", flush=True)
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--editable", wanted], check=True)
        installed.write_text("\n".join([*done, f"{state} {wanted}"]) + "\n")
    return python


if __name__ == "__main__":
    print(environment(*sys.argv[1:]))
