"""Records the facts about the networks of MXNet's model zoo. Run it once with each version of MXNet, in environments of
their own (see record_golden.py):

    python tests/record_zoo.py
"""

import json
from pathlib import Path

import mxnet
import zoo_facts
from mxnet.gluon.model_zoo import vision

VERSION = mxnet.__version__[0]


def array_of(values: object) -> object:
    return mxnet.nd.array(values) if VERSION == "1" else mxnet.np.array(values)


arguments = {"prefix": "net_"} if VERSION == "1" else {}
recorded = {name: zoo_facts.facts(vision, array_of, name, **arguments) for name in zoo_facts.NETWORKS}
initial = ["resnet18_v1", "resnet50_v1", "resnet18_v2", "squeezenet1.1", "mobilenetv2_0.25"]
recorded["initial"] = {name: zoo_facts.initial_facts(mxnet, vision, name) for name in initial}
lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in recorded.items())
(Path(__file__).parent / f"zoo_facts{VERSION}.golden.json").write_text(f"{{\n{lines}\n}}\n")
