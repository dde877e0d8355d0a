"""Records what MXNet prints for deck.py and arrays.py, and the facts about array_cases.txt, in files next to them.

Run it with interpreters that have MXNet, in separate environments (Python 3.11). MXNet 1 records the facts only:

    python -m venv mx && mx/bin/pip install mxnet==2.0.0b1 numpy==1.23.5
    mx/bin/python tests/record_golden.py
    python -m venv mx1 && mx1/bin/pip install mxnet==1.9.1 numpy==1.23.5
    mx1/bin/python tests/record_golden.py
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path


def facts() -> str:
    """The facts about every case as JSON, one case per line."""
    import array_facts
    import mxnet
    from mxnet import autograd, init, np, npx
    from mxnet.gluon import nn

    npx.set_np()
    measured = array_facts.Facts(np, npx, autograd, nn, init)
    groups: dict[str, list[str]] = {}
    for group, text in array_facts.cases():
        found = measured.of(group, text)
        try:
            npx.waitall()  # so that a late error is not attributed to the next case
        except mxnet.MXNetError as error:
            found = {"raises": type(error).__name__}
        groups.setdefault(group, []).append(f"    {json.dumps(text)}: {json.dumps(found, separators=(',', ':'))}")
    sections = [f"  {json.dumps(group)}: {{\n" + ",\n".join(lines) + "\n  }" for group, lines in groups.items()]
    return f'{{\n  "MXNet": {json.dumps(mxnet.__version__)},\n' + ",\n".join(sections) + "\n}\n"


def main() -> None:
    here = Path(__file__).parent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = facts()
    is_v1 = json.loads(recorded)["MXNet"].startswith("1.")
    (here / f"array_facts{'_1' if is_v1 else ''}.golden.json").write_text(recorded, encoding="utf-8")
    if is_v1:
        return
    for name in ("deck", "arrays"):
        done = subprocess.run([sys.executable, here / f"{name}.py"], capture_output=True, encoding="utf-8", check=True)
        (here / f"{name}.golden.txt").write_text(done.stdout)


if __name__ == "__main__":
    main()
