"""Records what MXNet computes for the cases in neural_cases.txt, in neural.golden1.json and neural.golden2.json.

Run it with interpreters that have MXNet 1.9.1 and 2.0.0b1, each in an environment of its own (see record_golden.py):

    mx1/bin/python tests/record_neural.py
    mx2/bin/python tests/record_neural.py
"""

import json
import warnings

import mxnet
import neural_facts


def main() -> None:
    version = mxnet.__version__[0]
    lines = [f'  "MXNet": {json.dumps(mxnet.__version__)}']
    for group, text in neural_facts.cases():
        kind, *versions = group.split()
        if version in versions:
            if kind == "npx" or version == "2":
                mxnet.npx.set_np()
            else:
                mxnet.npx.reset_np()
            facts = neural_facts.Measure(mxnet, kind).of(text)
            facts_text = json.dumps(facts, separators=(",", ":"))
            lines.append(f"  {json.dumps(f'{kind}: {text}')}: {facts_text}")
    golden = "{\n" + ",\n".join(lines) + "\n}\n"
    (neural_facts.HERE / f"neural.golden{version}.json").write_text(golden, encoding="utf-8")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
