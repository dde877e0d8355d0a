"""Records the facts about nd_cases.txt on the real MXNet, in a file next to this one.

Run it once with each version of MXNet, in separate environments (Python 3.11):

    python -m venv mx1 && mx1/bin/pip install mxnet==1.9.1 numpy==1.23.5
    python -m venv mx2 && mx2/bin/pip install mxnet==2.0.0b1 numpy==1.23.5
    mx1/bin/python tests/record_nd_golden.py
    mx2/bin/python tests/record_nd_golden.py
"""

import json
import sys
import warnings
from pathlib import Path

import mxnet
import nd_facts


def facts() -> str:
    """The facts about every case as JSON, one case per line."""
    measured = nd_facts.LegacyFacts(mxnet)
    groups: dict[str, list[str]] = {}
    for group, text in nd_facts.cases():
        print(text, file=sys.stderr, flush=True)  # if MXNet crashes, the last line says where
        line = f"    {json.dumps(text)}: {json.dumps(measured.of(group, text), separators=(',', ':'))}"
        groups.setdefault(group, []).append(line)
        mxnet.nd.waitall()  # so that a late error is not attributed to the next case
    sections = [f"  {json.dumps(group)}: {{\n" + ",\n".join(lines) + "\n  }" for group, lines in groups.items()]
    return f'{{\n  "MXNet": {json.dumps(mxnet.__version__)},\n' + ",\n".join(sections) + "\n}\n"


def main() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = Path(__file__).parent / f"nd_facts.{mxnet.__version__[0]}.golden.json"
        target.write_text(facts(), encoding="utf-8")


if __name__ == "__main__":
    main()
