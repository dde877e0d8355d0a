"""The facts that are recorded about an expression over nd arrays. Runs on both versions of MXNet and on leafwise.

`nd_cases.txt` lists the expressions. `record_nd_golden.py` evaluates them on real MXNet and writes
`nd_facts.1.golden.json` and `nd_facts.2.golden.json`; `test_nd_facts.py` evaluates them on the front end and compares.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy
from array_facts import Facts

# Evaluated again for every measurement, so that no write affects the next one.
ARRAYS = """
x = nd.array([[3, 1, 2], [6, 5, 4]])
v = nd.array([3, 1, 2, 5])
w = nd.array([0.25, -1.5, 2.5, -0.5])
p = nd.array([0.25, 0.5, 0.75])
c = nd.arange(24).reshape((2, 3, 4))
q = nd.array([[4, 1], [2, 3]])
k = nd.array([[4, 2], [2, 3]])
g = nd.array([[2], [3]])
m = nd.array([[1, 0, 1], [0, 1, 0]])
f4 = nd.arange(16).reshape((1, 1, 4, 4))
s = nd.array([2.5])
o = nd.array([[[1], [2]]])
i = nd.array([[3, 1, 2], [6, 5, 4]], dtype="int32")
j = nd.array([7, -7, 2], dtype="int64")
u = nd.array([250, 3, 7], dtype="uint8")
h = nd.array([1.5, 2], dtype="float16")
d = nd.array([1.5, 2], dtype="float64")
b = nd.array([[True, False, True], [False, True, False]], dtype="bool")
t = nd.array([[0, 2, -2], [2, 0, -1]])
r = nd.array([1, 3, 3, 1])
z = nd.array([0, -1, float("nan"), float("inf")])
at = nd.array([1, 0], dtype="int32")
fl = nd.array([1, 0])
n = numpy.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype="float32")
"""


def cases():
    """Every case as (group, text), in the order of the file."""
    found, group = [], ""
    for line in (Path(__file__).parent / "nd_cases.txt").read_text("utf-8").splitlines():
        if line.startswith("## "):
            group = line.removeprefix("## ")
        elif line and not line.startswith("# "):
            found.append((group, line))
    return found


class LegacyFacts(Facts):
    """Evaluates cases over nd arrays. `mx` has MXNet's modules `nd`, `np` and `autograd`, or leafwise's."""

    def __init__(self, mx):
        arrays = SimpleNamespace(ndarray=mx.nd.NDArray, arange=mx.nd.arange)
        super().__init__(arrays, None, mx.autograd, None, None)
        self._np_array = mx.np.ndarray
        self._names |= {"mx": mx, "nd": mx.nd}

    def _fresh(self, text):
        names = dict(self._names)
        words = set(re.findall(r"\w+", text))
        exec("\n".join(line for line in ARRAYS.strip().splitlines() if line.partition(" = ")[0] in words), names)
        return names

    def _described(self, result):
        facts = super()._described(result)
        if type(result) is self._np_array:
            facts["type"] = "np.ndarray"
        if isinstance(result, type):
            facts["value"] = numpy.dtype(result).name
        return facts
