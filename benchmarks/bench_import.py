"""The time of `import leafwise`, compared with starting Python."""

import subprocess
import sys

from common import interleaved, machine
from figures import exit_status, report


def python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def main() -> int:
    machine()
    python("import leafwise, sys; assert leafwise.__version__; assert not {'torch', 'numpy', 'jax'} & set(sys.modules)")
    times = interleaved(40, nothing=lambda: python("pass"), leafwise=lambda: python("import leafwise"))
    return exit_status([report("import leafwise / pass", times["leafwise"] / times["nothing"], 2.0)])


if __name__ == "__main__":
    sys.exit(main())
