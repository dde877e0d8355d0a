"""The facts that are recorded about an expression over arrays. Runs on MXNet 1, on MXNet 2 and on leafwise.

`array_cases.txt` lists the expressions. `record_golden.py` evaluates them on real MXNet and writes
`array_facts.golden.json`; `test_array_facts.py` evaluates them on the front end and compares.
"""

import copy
import math
import pickle
import re
from pathlib import Path

import numpy

# Evaluated again for every measurement, so that no write affects the next one.
ARRAYS = """
x = np.array([[3, 1, 2], [6, 5, 4]])
v = np.array([3, 1, 2, 5])
w = np.array([0.25, -1.5, 2.5, -0.5])
c = np.arange(24).reshape(2, 3, 4)
q = np.array([[4, 1], [2, 3]])
s = np.array(2.5)
o = np.array([[[1], [2]]])
e = np.zeros((0, 3))
i = np.array([[3, 1, 2], [6, 5, 4]], dtype="int32")
j = np.array([7, -7, 2], dtype="int64")
u = np.array([250, 3, 7], dtype="uint8")
h = np.array([1.5, 2], dtype="float16")
d = np.array([1.5, 2], dtype="float64")
b = np.array([[True, False, True], [False, True, False]], dtype="bool")
t = np.array([[0, 2, -2], [2, 0, -1]])
r = np.array([1, 3, 3, 1])
z = np.array([0, -1, float("nan"), float("inf")])
at = np.array([1, 0], dtype="int64")
fl = np.array([1, 0])
y = np.array([0.1, 0.5, 0.9])
p = np.array([[4, 1], [1, 3]])
n = numpy.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype="float32")
"""
LAYER = """
layer = nn.Dense(2, in_units=3)
layer.initialize(init.One())
"""

# MXNet's backward of some of these writes outside its memory; the others are about the gradient itself.
_NOT_RECORDED = {
    "v[[-1, 0]]",
    'x[np.array([-1], dtype="int64")]',
    "x.grad",
    "x.attach_grad()",
    "x.drop_grad()",
    "x.backward()",
    "npx.relu(z)",  # the gradient at NaN is not specified
}

UNDER_RECORD = "assignments under record"  # the group whose code runs there


def cases():
    """Every case as (group, text), in the order of the file."""
    found, group = [], ""
    for line in (Path(__file__).parent / "array_cases.txt").read_text("utf-8").splitlines():
        if line.startswith("## "):
            group = line.removeprefix("## ")
        elif line and not line.startswith("# "):
            found.append((group, line))
    return found


class Facts:
    """Evaluates cases on one implementation; the modules are MXNet's or leafwise's."""

    def __init__(self, np, npx, autograd, nn, init):
        self.np, self.autograd = np, autograd
        self._names = {"np": np, "npx": npx, "autograd": autograd, "nn": nn, "init": init}
        self._names |= {"numpy": numpy, "math": math, "copy": copy, "pickle": pickle}
        self.errors = {}  # what the last case raised, by stage: "value", "recorded" or "gradients"

    def of(self, group, text):
        """The facts about a case, as JSON values."""
        self.errors = {}
        try:
            if " -> " in text:
                return self._after(text, recording=group == UNDER_RECORD)
            facts = self._described(self._evaluated(text))
        except Exception as error:
            return self._raised("value", error)
        if any(isinstance(item, self.np.ndarray) for item in _flat(self._evaluated(text))):
            facts["aliases"] = self._aliases(text, recording=False)
            if text not in _NOT_RECORDED:
                facts["recorded"] = self._recorded(text)
        return facts

    def _raised(self, where, error):
        self.errors[where] = error
        return {"raises": type(error).__name__}

    def _fresh(self, text):
        names = dict(self._names)
        words = set(re.findall(r"\w+", text))
        needed = [line for line in ARRAYS.strip().splitlines() if line.partition(" = ")[0] in words]
        exec("\n".join(needed) + (LAYER if "layer" in words else ""), names)
        return names

    def _evaluated(self, text):
        return eval(text, self._fresh(text))

    def _after(self, text, recording):
        names = self._fresh(text)
        code, _, result = text.rpartition(" -> ")
        if recording:
            if "x" in names:
                names["x"].attach_grad()
            with self.autograd.record():
                exec(code, names)
        else:
            exec(code, names)
        return self._described(eval(result, names))

    # -- one result --------------------------------------------------------------------------------------

    def _described(self, result):
        if isinstance(result, self.np.ndarray):
            return {"type": "ndarray", **_numbers(result.asnumpy())}
        if isinstance(result, numpy.ndarray):
            return {"type": "numpy.ndarray", **_numbers(result)}
        if isinstance(result, (tuple, list)):
            return {"type": type(result).__name__, "items": [self._described(item) for item in result]}
        if isinstance(result, numpy.generic):
            return {"type": "numpy." + result.dtype.name, "value": _short(result.item())}
        if isinstance(result, numpy.dtype):
            return {"type": "dtype", "value": result.name}
        if result is None or isinstance(result, (bool, int, float, str, bytes)):
            value = repr(result) if isinstance(result, bytes) else _short(result)
            return {"type": type(result).__name__, "value": value}
        return {"type": type(result).__name__}

    # -- edits --------------------------------------------------------------------------------------------

    def _aliases(self, text, recording):
        """Whether the result is a source itself; if not, whether writing to one of them changes the other."""
        sources, result = self._with_sources(text, recording)
        arrays = [item for item in _flat(result) if isinstance(item, self.np.ndarray)]
        if any(item is source for item in arrays for source in sources.values()):
            return "same object"
        before = _bytes(sources.values())
        for item in arrays:
            _edit(item)
        result_reaches_source = _bytes(sources.values()) != before
        sources, result = self._with_sources(text, recording)
        arrays = [item for item in _flat(result) if isinstance(item, self.np.ndarray)]
        before = _bytes(arrays)
        for source in sources.values():
            _edit(source)
        source_reaches_result = _bytes(arrays) != before
        words = {(True, True): "both", (True, False): "result to source", (False, True): "source to result"}
        return words.get((result_reaches_source, source_reaches_result), "neither")

    def _with_sources(self, text, recording):
        names = self._fresh(text)
        used = compile(text, "case", "eval").co_names
        sources = {name: names[name] for name in used if isinstance(names.get(name), self.np.ndarray)}
        if not recording:
            return sources, eval(text, names)
        for source in sources.values():
            if "float" in str(source.dtype):
                source.attach_grad()
        with self.autograd.record():
            return sources, eval(text, names)

    def _recorded(self, text):
        """The same under record(): aliases, and the gradients if the result can be differentiated."""
        try:
            facts = {"aliases": self._aliases(text, recording=True)}
            sources, result = self._with_sources(text, recording=True)
            heads = [item for item in _flat(result) if isinstance(item, self.np.ndarray) and "float" in str(item.dtype)]
            if heads and any("float" in str(source.dtype) for source in sources.values()):
                facts["gradients"] = self._gradients(sources, heads)
            return facts
        except Exception as error:
            return self._raised("recorded", error)

    def _gradients(self, sources, heads):
        # A different weight for each element, so that a gradient in the wrong place is noticed.
        weights = [self.np.arange(1, head.size + 1).reshape(head.shape).astype(head.dtype) for head in heads]
        try:
            self.autograd.backward(heads, weights)
        except Exception as error:
            return self._raised("gradients", error)
        floats = {name: source for name, source in sources.items() if "float" in str(source.dtype)}
        return {name: _nested(source.grad.asnumpy()) for name, source in floats.items()}


def _flat(result):
    if isinstance(result, (tuple, list)):
        return [inner for item in result for inner in _flat(item)]
    return [result]


def _edit(array):
    """Writes other values into every element."""
    values = array.asnumpy()
    values = ~values if values.dtype == bool else numpy.nan_to_num(values, nan=3, posinf=4, neginf=5) + 1
    array[() if array.ndim == 0 else slice(None)] = numpy.asarray(values, dtype=array.dtype)


def _bytes(arrays):
    return [array.asnumpy().tobytes() for array in arrays]


def _numbers(values):
    return {"dtype": values.dtype.name, "shape": list(values.shape), "value": _nested(values)}


def _nested(values):
    return _short(values.tolist())


def _short(value):
    """Rounds floats to the seven digits of float32; whole numbers become integers, as types are recorded separately."""
    if isinstance(value, list):
        return [_short(item) for item in value]
    if not isinstance(value, float):
        return value
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() else short
