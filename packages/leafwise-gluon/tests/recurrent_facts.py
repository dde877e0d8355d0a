"""Recurrent layers and cells, and what they compute: outputs, last states, gradients, names and texts.

Run as a script with an interpreter that has MXNet 1.9.1 or 2.0.0b1 (see record_golden.py), it writes the golden file of
that version beside it.
"""

import json
from pathlib import Path
from typing import Any

LENGTHS = (2, 4, 1)  # of the three sequences; time has 4 steps, inputs have 2 elements

_INFERRED = "inferred(net, x, net.begin_state(batch_size=3))"  # MXNet cannot train these on a CPU
_LAYER = "net(x, net.begin_state(batch_size=3))"
_LIST = "net.unroll(4, x, layout='TNC')"
_ARRAY = "net.unroll(4, x, layout='TNC', merge_outputs=True)"
_VALID = "net.unroll(4, x, layout='TNC', merge_outputs=True, valid_length=lengths)"
_VALID_LIST = "net.unroll(4, [step for step in x], layout='TNC', merge_outputs=False, valid_length=lengths)"
_STEPS = "net.unroll(4, [step for step in x], layout='TNC')"
_BATCH_FIRST = "net.unroll(3, x, layout='NTC', merge_outputs=True)"
_ALL = (_LIST, _ARRAY, _VALID, _VALID_LIST, _STEPS, _BATCH_FIRST)
_STACK = "stack({}, rnn.LSTMCell(5, input_size=2), rnn.GRUCell(3, input_size=5))"

# How a block is made, and the calls. "stack" adds cells to the first one.
CASES: dict[str, tuple[str, ...]] = {
    "rnn.RNN(5)": ("net(x)", _LAYER),
    "rnn.RNN(5, 2, activation='tanh', bidirectional=True)": ("net(x)", _LAYER),
    "rnn.RNN(5, layout='NTC')": ("net(x)",),
    "rnn.LSTM(5)": ("net(x)", _LAYER),
    "rnn.LSTM(5, 3, bidirectional=True)": (_LAYER,),
    "rnn.LSTM(5, 2, layout='NTC')": ("net(x)", "net(x, net.begin_state(batch_size=4))"),
    "rnn.LSTM(5, 2, input_size=2)": (_LAYER,),
    "rnn.LSTM(5, projection_size=3)": (_INFERRED,),
    "rnn.LSTM(5, 2, projection_size=3, bidirectional=True)": (_INFERRED,),
    "rnn.GRU(5)": ("net(x)", _LAYER),
    "rnn.GRU(5, 2, bidirectional=True)": (_LAYER,),
    "rnn.GRU(5, 2, layout='NTC', dropout=0.5)": ("inferred(net, x)",),
    "rnn.RNNCell(5, input_size=2)": _ALL,
    "rnn.RNNCell(5, activation='relu', input_size=2)": (_ARRAY,),
    "rnn.RNNCell(5, activation='softsign', input_size=2)": (_ARRAY,),
    "rnn.LSTMCell(5, input_size=2)": _ALL,
    "rnn.LSTMCell(5, input_size=2, activation='softsign', recurrent_activation='tanh')": (_ARRAY,),
    "rnn.GRUCell(5, input_size=2)": _ALL,
    "rnn.ResidualCell(rnn.GRUCell(2, input_size=2))": _ALL,
    "rnn.ZoneoutCell(rnn.RNNCell(5, input_size=2), 0.5, 0.5)": (
        "inferred(net.unroll, 4, x, layout='TNC', merge_outputs=True)",
    ),
    "rnn.BidirectionalCell(rnn.LSTMCell(5, input_size=2), rnn.GRUCell(3, input_size=2))": _ALL,
    _STACK.format("rnn.SequentialRNNCell()"): _ALL,
    _STACK.format("rnn.HybridSequentialRNNCell()"): _ALL,
    "stack(rnn.SequentialRNNCell(), rnn.RNNCell(5, input_size=2), rnn.DropoutCell(0.0), "
    "rnn.RNNCell(4, input_size=5))": (_LIST, _ARRAY),
    "stack(rnn.HybridSequentialRNNCell(), rnn.BidirectionalCell(rnn.RNNCell(2, input_size=2), "
    "rnn.RNNCell(3, input_size=2)), rnn.LSTMCell(4, input_size=5))": (_LIST, _ARRAY, _VALID),
}

_IMAGES = "net.unroll(2, [image, image * 2], merge_outputs=True)"

ONLY_V2_CASES: dict[str, tuple[str, ...]] = {
    "rnn.Conv2DRNNCell((2, 4, 3), 2, 3, 3)": (_IMAGES,),
    "rnn.Conv2DLSTMCell((2, 4, 3), 2, (3, 1), (1, 3), i2h_pad=(1, 0), h2h_dilate=2, activation='relu')": (_IMAGES,),
    "rnn.Conv2DGRUCell((2, 4, 3), 2, 3, 3, i2h_pad=1)": (_IMAGES,),
    "rnn.LSTMPCell(5, 3, input_size=2)": _ALL,
    "rnn.GRUCell(5, input_size=2, activation='softsign', recurrent_activation='tanh')": (_ARRAY,),
    "rnn.VariationalDropoutCell(rnn.LSTMCell(5, input_size=2), 0.5, 0.0, 0.5)": (
        "inferred(net.unroll, 4, x, layout='TNC', merge_outputs=True)",
    ),
}


def cases(version: int) -> list[tuple[str, str]]:
    every = CASES if version == 1 else {**CASES, **ONLY_V2_CASES}
    return [(block, call) for block, calls in every.items() for call in calls]


def stack(container: Any, *cells: Any) -> Any:
    for cell in cells:
        container.add(cell)
    return container


class Facts:
    """Measures a case with the modules of MXNet or of the front end."""

    def __init__(self, version: int, rnn: Any, arrays: Any, autograd: Any, init: Any, random: Any) -> None:
        self.version, self.rnn, self.arrays, self.autograd = version, rnn, arrays, autograd
        self.init, self.random = init, random

    def of(self, block: str, call: str) -> dict[str, Any]:
        net = eval(block, {"rnn": self.rnn, "stack": stack})
        self.random.seed(5)
        net.initialize(self.init.Uniform(0.5))
        draw = self.arrays.random.uniform
        x = draw(-1, 1, shape=(4, 3, 2)) if self.version == 1 else draw(-1, 1, size=(4, 3, 2))
        x.attach_grad()
        names = {"net": net, "x": x, "image": x.reshape((1, 2, 4, 3)), "lengths": self.arrays.array(LENGTHS)}
        with self.autograd.record():
            result = eval(call, {**names, "inferred": self._inferred})
            outputs = list(_flat(result))
            loss = sum((output * output).sum() for output in outputs)
        if "inferred" not in call:
            loss.backward()
        named = net._collect_params_with_prefix() if self.version == 1 else net.collect_params()
        return {
            "text": repr(net),
            "states": [list(info["shape"]) for info in net.state_info(3)],
            "outputs": [_numbers(output) for output in outputs],
            "is list": isinstance(result, tuple) and isinstance(result[0], list),
            "x.grad": _numbers(x.grad),
            "parameters": {name: _numbers(value.data()) for name, value in named.items()},
            "gradients": {name: _numbers(value.grad()) for name, value in named.items()},
        }

    def _inferred(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        with self.autograd.pause():
            return function(*args, **kwargs)


def _flat(value: Any) -> Any:
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _flat(entry)
    else:
        yield value


def _numbers(array: Any) -> dict[str, Any]:
    """The shape, the sum of absolute values, and the first elements."""
    values = array.asnumpy()
    first = [round(value, 6) for value in values.reshape(-1)[:12].tolist()]
    return {"shape": list(values.shape), "sum": round(float(abs(values).sum()), 5), "first": first}


def golden_file(version: int) -> Path:
    return Path(__file__).with_name(f"recurrent_facts.{version}.golden.json")


def main() -> None:
    import mxnet
    from mxnet.gluon import rnn

    version = int(mxnet.__version__[0])
    arrays = mxnet.nd if version == 1 else mxnet.np
    facts = Facts(version, rnn, arrays, mxnet.autograd, mxnet.init, mxnet.random)
    lines = (f"[{json.dumps([*case])}, {json.dumps(facts.of(*case))}]" for case in cases(version))
    golden_file(version).write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
