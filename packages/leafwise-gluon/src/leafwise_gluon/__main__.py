"""`python -m leafwise_gluon [--mxnet 1] script.py`: runs a script in which `import mxnet` imports this front end."""

import argparse
import os
import runpy
import sys


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m leafwise_gluon",
        description="Run a Gluon script on PyTorch. In this process only, `import mxnet` imports leafwise_gluon.",
    )
    parser.add_argument(
        "--mxnet",
        type=int,
        choices=(1, 2),
        default=2,
        help="the version of MXNet that the script was written for (default: 2)",
    )
    parser.add_argument("script", help="the Python file to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments passed on to the script")
    options = parser.parse_args()
    if not os.path.isfile(options.script):
        parser.error(f"cannot find the script {options.script!r}")
    from leafwise_gluon import as_mxnet

    as_mxnet(options.mxnet)
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))  # as Python itself does for a script
    runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
