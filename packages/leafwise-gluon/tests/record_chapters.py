"""Records what MXNet prints for the scripts in chapters/, in files next to them.

A script whose name ends in _1 or _2 is for that version only; the others are for both. Run it with interpreters that
have MXNet 1 and MXNet 2, in separate environments (Python 3.11); with names of chapters, it records only those:

    python -m venv mx1 && mx1/bin/pip install mxnet==1.9.1 numpy==1.23.5
    python -m venv mx2 && mx2/bin/pip install mxnet==2.0.0b1 numpy==1.23.5
    mx1/bin/python tests/record_chapters.py && mx2/bin/python tests/record_chapters.py
"""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    import mxnet

    version = mxnet.__version__.partition(".")[0]
    chapters = Path(__file__).parent / "chapters"
    for script in sorted(chapters.glob("[!_]*.py")):
        name, _, only = script.stem.rpartition("_")
        if only not in ("1", "2"):
            name, only = script.stem, version
        if only != version or (sys.argv[1:] and name not in sys.argv[1:]):
            continue
        command = [sys.executable, "-W", "ignore", script]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
        (chapters / f"{name}_{version}.golden.txt").write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
