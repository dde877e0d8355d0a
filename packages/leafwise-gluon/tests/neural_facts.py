"""Measures the cases in neural_cases.txt: results, dtypes and gradients, with MXNet or with the front end.

A case is an expression. In it, `x(2, 3)` is a new float32 input between -1 and 1 whose gradient is recorded, `p(2, 3)`
one between 0.5 and 1.5, `i(2, 3, high=4)` one of whole numbers below `high`, and `v([...])` one with given values;
`i` and `v` have no gradient. Layers get the same weights everywhere, see `weights_for`.
"""

import re
from pathlib import Path
from typing import Any

import numpy

HERE = Path(__file__).parent
DIGITS = 6  # significant digits of recorded numbers


def cases() -> list[tuple[str, str]]:
    """Every case as its group and its expression. A group is a namespace with the versions that have it: `nd 1 2`."""
    found, group = [], ""
    for line in (HERE / "neural_cases.txt").read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text.startswith("["):
            group = text.strip("[]")
        elif text and not text.startswith("#"):
            found.append((group, text))
    return found


def weights_for(shape: tuple[int, ...], name: str, number: int) -> Any:
    """The values of a layer's parameter: between -0.5 and 0.5, and above 0.5 for what must be positive."""
    values = numpy.random.RandomState(1000 + number).uniform(-0.5, 0.5, shape).astype("float32")
    return values + 1 if name.endswith(("gamma", "running_var")) else values


class Measure:
    """Measures cases in one namespace (`nd`, `npx` or `nn`) of MXNet or of the front end."""

    def __init__(self, mxnet: Any, kind: str) -> None:
        self.mxnet, self.kind = mxnet, kind
        self.is_nd = kind == "nd" or (kind == "nn" and not mxnet.util.is_np_array())
        self.array = mxnet.nd.array if self.is_nd else mxnet.np.array

    def of(self, text: str) -> Any:
        """The facts of a case, or the name of the error."""
        try:
            facts = self._facts(text)
            self.mxnet.nd.waitall()  # MXNet raises some errors only here
        except Exception as error:
            return f"error {type(error).__name__}"
        return facts

    def _facts(self, text: str) -> dict[str, Any]:
        made: list[Any] = []
        names = self._names(made)
        record = self.mxnet.autograd.record
        if self.kind == "nn":
            layer = eval(text.split(" @ ")[0], names)
            call = f"layer({text.split(' @ ')[1]})"
            self._set_weights(layer, eval(text.split(" @ ")[1], self._names([])))
            names["layer"] = layer
        else:
            call = text
        facts: dict[str, Any] = {"predict": [_fact(result) for result in _listed(eval(call, names))]}
        made.clear()
        with record():
            results = _listed(eval(call, names))
        facts["train"] = [_fact(result) for result in results]
        floats = [result for result in results if numpy.dtype(result.dtype).kind == "f"]
        if floats and (made or self.kind == "nn"):
            heads = [self.array(_values(50 + n, result.shape), dtype=result.dtype) for n, result in enumerate(floats)]
            self.mxnet.autograd.backward(floats, heads)
            facts["grads"] = [_fact(array.grad) for array in made]
        if self.kind == "nn":
            facts["repr"] = repr(layer)
            own = list(layer.collect_params().values())
            facts["parameters"] = [[_own_name(p.name), list(p.shape), p.grad_req] for p in own]
            facts["parameter grads"] = [_fact(p.grad()) for p in own if p.grad_req != "null"]
            facts["after"] = [_fact(p.data()) for p in own if p.grad_req == "null"]
        return facts

    def _set_weights(self, layer: Any, example: Any) -> None:
        layer.initialize()
        layer(example)
        for number, parameter in enumerate(layer.collect_params().values()):
            values = weights_for(tuple(parameter.shape), parameter.name, number)
            parameter.set_data(self.array(values, dtype=parameter.dtype))

    def _names(self, made: list[Any]) -> dict[str, Any]:
        def floats(*shape: int, scale: float = 1, shift: float = 0) -> Any:
            array = self.array(_values(len(made) + 1, shape) * scale + shift, dtype="float32")
            array.attach_grad()
            made.append(array)
            return array

        def whole(*shape: int, high: int, dtype: str = "float32") -> Any:
            values = numpy.random.RandomState(99).randint(0, high, shape)
            return self.array(values.astype(dtype), dtype=dtype)

        def given(values: Any, dtype: str = "float32") -> Any:
            return self.array(numpy.array(values, dtype), dtype=dtype)

        def positive(*shape: int) -> Any:
            return floats(*shape, scale=0.5, shift=1)

        names: dict[str, Any] = {"x": floats, "p": positive, "i": whole, "v": given, "nn": self.mxnet.gluon.nn}
        space = self.mxnet.nd if self.kind == "nd" else self.mxnet.npx
        return {**names, "nd": self.mxnet.nd, "npx": self.mxnet.npx, "np": self.mxnet.np, "F": space}


def _values(seed: int, shape: tuple[int, ...]) -> Any:
    return numpy.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def _own_name(name: str) -> str:
    """The name of a parameter without the numbered name of its layer, which 1.x puts before it."""
    return re.sub(r"^[a-z]+[0-9]+[a-z]*[0-9]*_", "", name)


def _fact(array: Any) -> list[Any]:
    values = array.asnumpy()
    flat = [float(f"{value:.{DIGITS}g}") for value in values.astype("float64").ravel()]
    return [list(values.shape), str(numpy.dtype(array.dtype)), flat]
