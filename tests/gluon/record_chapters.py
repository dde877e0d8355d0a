"""Records what MXNet prints for the scripts in chapters/ that are written for its version, in files next to them.

Run it with interpreters that have MXNet 1 and MXNet 2, in separate environments (Python 3.11):

    python -m venv mx1 && mx1/bin/pip install mxnet==1.9.1 numpy==1.23.5
    python -m venv mx2 && mx2/bin/pip install mxnet==2.0.0b1 numpy==1.23.5
    mx1/bin/python tests/gluon/record_chapters.py && mx2/bin/python tests/gluon/record_chapters.py
"""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    import mxnet

    version = mxnet.__version__.partition(".")[0]
    for script in sorted((Path(__file__).parent / "chapters").glob(f"*_{version}.py")):
        command = [sys.executable, "-W", "ignore", script]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
        script.with_suffix(".golden.txt").write_text(done.stdout)


if __name__ == "__main__":
    main()
