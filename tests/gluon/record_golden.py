"""Records what real MXNet prints for deck.py and arrays.py, into files beside them.

Run it with an interpreter that has MXNet, in an environment of its own (Python 3.11):

    python -m venv mx && mx/bin/pip install mxnet==2.0.0b1 numpy==1.23.5
    mx/bin/python tests/gluon/record_golden.py
"""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    here = Path(__file__).parent
    for name in ("deck", "arrays"):
        done = subprocess.run([sys.executable, here / f"{name}.py"], capture_output=True, encoding="utf-8", check=True)
        (here / f"{name}.golden.txt").write_text(done.stdout)


if __name__ == "__main__":
    main()
