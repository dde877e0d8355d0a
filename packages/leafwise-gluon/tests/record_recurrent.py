"""Records what MXNet prints for recurrent_script.py, in recurrent_script.mxnet1.golden.txt or in that of MXNet 2.

Run it with an interpreter that has MXNet (see record_golden.py), once with each version.
"""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    here = Path(__file__).parent
    script = [sys.executable, "-W", "ignore", here / "recurrent_script.py"]
    done = subprocess.run(script, capture_output=True, encoding="utf-8", check=True)
    version = subprocess.run(
        [sys.executable, "-c", "import mxnet; print(mxnet.__version__[0])"],
        capture_output=True, encoding="utf-8", check=True,
    ).stdout.strip()  # fmt: skip
    (here / f"recurrent_script.mxnet{version}.golden.txt").write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
