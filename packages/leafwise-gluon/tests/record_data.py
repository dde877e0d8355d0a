"""Records what MXNet prints for data_script.py, in data_script.mxnet1.golden.txt or data_script.mxnet2.golden.txt.

Run it with an interpreter that has MXNet (see record_golden.py), once with each version.
"""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    here = Path(__file__).parent
    script = [sys.executable, "-W", "ignore", here / "data_script.py"]
    done = subprocess.run(script, capture_output=True, encoding="utf-8", check=True)
    version = subprocess.run(
        [sys.executable, "-c", "import mxnet; print(mxnet.__version__[0])"],
        capture_output=True, encoding="utf-8", check=True,
    ).stdout.strip()  # fmt: skip
    (here / f"data_script.mxnet{version}.golden.txt").write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
