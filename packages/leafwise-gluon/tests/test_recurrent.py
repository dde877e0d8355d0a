"""Recurrent layers and cells compute what MXNet computes. `recurrent_facts.py` describes how that was recorded."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from recurrent_facts import Facts, golden_file
from tests.forked import Commands

import leafwise as lw
from leafwise_gluon import MXNetError, autograd, dialect, init, nd, nn, np, npx, rnn, utils
from leafwise_gluon import random as mx_random
from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.modes import back_to_the_dialect

HERE = Path(__file__).parent
NUMBER = re.compile(r"-?\d+\.\d+")
GOLDEN = [(version, *entry) for version in (1, 2) for entry in json.loads(golden_file(version).read_text("utf-8"))]


@pytest.fixture(autouse=True)
def dialect_and_seed_of_the_start() -> Iterator[None]:
    yield
    dialect.use_version(2)
    back_to_the_dialect()
    mx_random.seed(0)


@pytest.mark.parametrize(
    ("version", "case", "known"), GOLDEN, ids=[f"{version} {block} {call}" for version, (block, call), _ in GOLDEN]
)
def test_layers_and_cells_compute_what_mxnet_computes(version: Any, case: list[str], known: dict[str, Any]) -> None:
    dialect.use_version(version)
    facts = Facts(version, rnn, nd if version == 1 else np, autograd, init, mx_random).of(*case)
    for fact in ("text", "states", "is list"):
        assert facts[fact] == known[fact]
    _check_numbers(facts["x.grad"], known["x.grad"])
    for output, expected in zip(facts["outputs"], known["outputs"], strict=True):
        _check_numbers(output, expected)
    for fact in ("parameters", "gradients"):
        assert list(facts[fact]) == list(known[fact])
        for name, numbers in known[fact].items():
            _check_numbers(facts[fact][name], numbers)


def _check_numbers(numbers: dict[str, Any], known: dict[str, Any]) -> None:
    assert numbers["shape"] == known["shape"]
    numpy.testing.assert_allclose(numbers["first"], known["first"], rtol=1e-4, atol=1e-5)
    numpy.testing.assert_allclose(numbers["sum"], known["sum"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_script_prints_what_mxnet_prints(version: str, scripts: Commands) -> None:
    done = scripts.run("--mxnet", version, HERE / "recurrent_script.py")
    assert done.returncode == 0, done.stderr
    golden = (HERE / f"recurrent_script.mxnet{version}.golden.txt").read_text("utf-8")
    assert NUMBER.sub("#", done.stdout) == NUMBER.sub("#", golden)
    numbers, known = ([float(number) for number in NUMBER.findall(text)] for text in (done.stdout, golden))
    numpy.testing.assert_allclose(numbers, known, rtol=2e-3, atol=2e-3)


def test_parameters_of_1x_have_names_and_other_names_in_files() -> None:
    dialect.use_version(1)
    layer = rnn.LSTM(4, 2, bidirectional=True, prefix="lstm0_")
    names = list(layer.collect_params())
    assert names[:2] == ["lstm0_l0_i2h_weight", "lstm0_l0_h2h_weight"]
    assert names[4] == "lstm0_r0_i2h_weight"
    net = nn.Sequential(prefix="net_")
    net.add(layer)
    assert list(net.parameters_by_path())[:2] == ["0._unfused.0.l_cell.i2h_weight", "0._unfused.0.l_cell.h2h_weight"]
    assert next(iter(rnn.GRU(4).parameters_by_path())) == "_unfused.0.i2h_weight"


def test_parameters_of_2x_are_one_flat_array() -> None:
    layer = rnn.GRU(4, 2)
    assert list(layer.collect_params()) == ["rnn_param"]
    layer.initialize()
    layer(np.ones((2, 1, 3)))
    assert layer.rnn_param.shape == (3 * 4 * (3 + 4 + 2) + 3 * 4 * (4 + 4 + 2),)


def test_an_unfused_layer_shares_its_parameters() -> None:
    dialect.use_version(1)
    layer = rnn.LSTM(4, 2, bidirectional=True, input_size=3)
    layer.initialize(init.Uniform(0.5))
    x = nd.random.uniform(shape=(5, 2, 3))
    cells = layer._unfuse()
    outputs, _ = cells.unroll(5, x, layout="TNC", merge_outputs=True)
    numpy.testing.assert_allclose(layer(x).asnumpy(), outputs.asnumpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_dropout_between_layers_follows_the_seed(version: Any) -> None:
    dialect.use_version(version)
    arrays = nd if version == 1 else np
    layer, x = rnn.LSTM(8, 2, dropout=0.5), arrays.ones((3, 2, 4))
    layer.initialize(init.Uniform(0.5))
    layer(x)
    drawn = []
    for seed in (1, 1, 2):
        mx_random.seed(seed)
        with autograd.train_mode():
            drawn.append(layer(x).asnumpy())
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    assert (layer(x).asnumpy() == layer(x).asnumpy()).all()


@pytest.mark.parametrize("make", [lambda: rnn.LSTM(4), lambda: rnn.GRU(4, 2, layout="NTC"), lambda: rnn.RNN(4)])
def test_layers_take_plain_tensors(make: Any) -> None:
    layer = make()
    layer.initialize()
    output = layer(torch.ones(3, 2, 5))
    assert type(output) is torch.Tensor
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_cells_take_plain_tensors() -> None:
    cell = rnn.LSTMCell(4, input_size=5)
    cell.initialize()
    outputs, states = cell.unroll(3, torch.ones(2, 3, 5), merge_outputs=True)
    assert type(outputs) is torch.Tensor
    assert outputs.shape == (2, 3, 4)
    assert [type(state) for state in states] == [torch.Tensor, torch.Tensor]


def test_pytorch_has_the_same_layers() -> None:
    layer, twin = rnn.LSTM(4), torch.nn.LSTM(3, 4)
    layer.initialize(init.Uniform(0.5))
    x = torch.rand(5, 2, 3)
    layer(x)
    flat = layer.rnn_param.tensor.detach()
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    start = 0
    for name in names:
        part = getattr(twin, name)
        part.data = flat[start : start + part.numel()].view(part.shape)
        start += part.numel()
    torch.testing.assert_close(layer(x), twin(x)[0])


@pytest.mark.parametrize("version", [1, 2])
def test_cells_infer_the_width_of_their_input(version: Any) -> None:
    dialect.use_version(version)
    arrays = nd if version == 1 else np
    cell = rnn.GRUCell(4)
    cell.initialize()
    outputs, _ = cell.unroll(2, arrays.ones((3, 2, 5)))
    assert outputs[0].shape == (3, 4)
    assert repr(cell) == "GRUCell(5 -> 12)"


def test_shapes_of_stacks_are_inferred_as_in_2x() -> None:
    stack = rnn.HybridSequentialRNNCell()
    stack.add(rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.LSTMCell(4)))
    stack.add(rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.LSTMCell(4)))
    x = np.ones((3, 2, 5))
    stack.infer_shape(0, x, False)
    stack.initialize()
    outputs, states = stack.unroll(2, x, merge_outputs=True)
    assert outputs.shape == (3, 2, 8)
    assert len(states) == 8


def test_states_can_be_made_by_a_function() -> None:
    layer = rnn.LSTM(4)
    hidden, memory = layer.begin_state(2, func=np.ones)
    assert hidden.shape == memory.shape == (1, 2, 4)
    assert hidden.asnumpy().all()
    assert rnn.GRUCell(3).begin_state(batch_size=2, dtype="float64")[0].dtype == numpy.float64


def test_zoneout_keeps_old_values_and_is_reset() -> None:
    cell = rnn.ZoneoutCell(rnn.RNNCell(50, input_size=2), zoneout_outputs=0.5, zoneout_states=0.5)
    cell.initialize()
    with autograd.train_mode():
        (first, second), _ = cell.unroll(2, np.ones((1, 2, 2)))
    assert 0 < (first.asnumpy() == 0).mean() < 1
    assert (first.asnumpy() == second.asnumpy()).any()


def test_variational_dropout_drops_the_same_elements_at_each_step() -> None:
    cell = rnn.VariationalDropoutCell(rnn.RNNCell(50, input_size=2), drop_outputs=0.5)
    cell.initialize()
    with autograd.train_mode():
        outputs, _ = cell.unroll(3, np.ones((1, 3, 2)), merge_outputs=True)
    dropped = outputs.asnumpy()[0] == 0
    assert 0 < dropped.mean() < 1
    assert (dropped[0] == dropped[1]).all()
    assert (dropped[0] == dropped[2]).all()


def test_the_operator_takes_flat_parameters() -> None:
    layer, x = rnn.GRU(4, 2, bidirectional=True), np.random.uniform(size=(3, 2, 5))
    layer.initialize(init.Uniform(0.5))
    states = layer.begin_state(2)
    expected, last = layer(x, states)
    options = {"mode": "gru", "state_size": 4, "num_layers": 2, "bidirectional": True}
    output, state = npx.rnn(x, layer.rnn_param.data(), states[0], state_outputs=True, **options)
    numpy.testing.assert_allclose(output.asnumpy(), expected.asnumpy(), rtol=1e-5)
    numpy.testing.assert_allclose(state.asnumpy(), last[0].asnumpy(), rtol=1e-5)
    alone = nd.RNN(*(wrap_legacy(value.tensor) for value in (x, layer.rnn_param.data(), states[0])), **options)
    numpy.testing.assert_allclose(alone.asnumpy(), expected.asnumpy(), rtol=1e-5)


def test_roles_are_those_of_pytorch() -> None:
    cell = rnn.LSTMCell(4, input_size=3)
    cell.initialize()
    tree = lw.tree(cell)
    assert (tree["i2h_weight"].role, tree["i2h_weight"].axes) == ("rnn.weight_ih", ("out", "in"))
    assert tree["h2h_bias"].role == "rnn.bias_hh"


def _called(layer: Any, *args: Any) -> Any:
    layer.initialize()
    layer(np.ones((3, 2, 4)))
    return layer(*args)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rnn.LSTM(4, layout="CTN"), AssertionError, "Invalid layout CTN"),
        (lambda: rnn.RNN(4, activation="softsign"), KeyError, "rnn_softsign"),
        (lambda: rnn.LSTM(4, use_sequence_length=True), MXNetError, "RNN with use_sequence_length"),
        (lambda: rnn.LSTM(4, state_clip_min=-1, state_clip_max=1), MXNetError, "clipped state"),
        (lambda: _called(rnn.GRU(5), np.ones((3, 2, 4)), np.ones((1, 3, 5))), ValueError, r"Expecting \(1, 2, 5\)"),
        (lambda: _called(rnn.GRU(5), np.ones((3, 2, 5))), MXNetError, r"Provided = \[165\], inferred shape=\(180,\)"),
        (lambda: _called(rnn.LSTM(5), np.ones((3, 2, 4)), np.ones((1, 2, 5))), MXNetError, "needs 2 states, not 1"),
        (lambda: _called(rnn.LSTM(5), np.ones((3, 4))), MXNetError, "rank-3"),
        (lambda: rnn.BidirectionalCell(rnn.LSTMCell(3), rnn.LSTMCell(3))(1, []), NotImplementedError, "unroll"),
        (lambda: rnn.Conv2DLSTMCell((3, 8, 8), 4, 3, 2), AssertionError, "Only support odd number"),
        (lambda: rnn.Conv2DLSTMCell((3, 8, 8), 4, (3,), 3), AssertionError, "of length 2"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_modified_cell_is_called_through_its_modifier() -> None:
    cell = rnn.RNNCell(3, input_size=2)
    modifier = rnn.ResidualCell(cell)
    with pytest.raises(AssertionError, match="Call the modifier cell instead"):
        cell.begin_state(2)
    with pytest.raises(AssertionError, match="One cell cannot be modified twice"):
        rnn.ZoneoutCell(cell)
    assert modifier.begin_state(2)[0].shape == (2, 3)


@pytest.mark.parametrize("version", [1, 2])
def test_a_cell_of_the_user(version: Any) -> None:
    dialect.use_version(version)
    arrays: Any = nd if version == 1 else np

    class Decay(rnn.RecurrentCell):
        def state_info(self, batch_size: int = 0) -> Any:
            return [{"shape": (batch_size, 2), "__layout__": "NC"}]

        def forward(self, inputs: Any, states: Any) -> Any:
            output = inputs + 0.5 * states[0]
            return output, [output]

    outputs, states = Decay().unroll(3, arrays.ones((1, 3, 2)), merge_outputs=True)
    assert outputs.asnumpy()[0, :, 0].tolist() == [1, 1.5, 1.75]
    assert states[0].asnumpy().tolist() == [[1.75, 1.75]]


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_a_dynamic_unroll_is_an_unroll(layout: str) -> None:
    cell = rnn.LSTMCell(3, input_size=2)
    cell.initialize()
    data = np.random.normal(size=(4, 5, 2))
    length, batch = (4, 5) if layout == "TNC" else (5, 4)
    lengths = np.array([1, 3, 2, 4, 4][:batch])
    for valid_length in (None, lengths):
        states = cell.begin_state(batch)
        outputs, last = cell.unroll(length, data, states, layout, merge_outputs=True, valid_length=valid_length)
        dynamic, last_dynamic = rnn.rnn_cell.dynamic_unroll(
            cell, data, states, layout=layout, valid_length=valid_length
        )
        assert numpy.allclose(dynamic.asnumpy(), outputs.asnumpy(), atol=1e-6)
        for one, other in zip(last_dynamic, last, strict=True):
            assert numpy.allclose(one.asnumpy(), other.asnumpy(), atol=1e-6)


def test_the_parts_of_a_flat_parameter_are_copies() -> None:
    layer = rnn.LSTM(4, 2, input_size=3, bidirectional=True, projection_size=2)
    layer.initialize()
    layer(np.ones((5, 1, 3)))
    flat = layer.rnn_param.data()
    parts = utils.split_rnn_params(flat, "lstm", 2, 3, 4, True, 2)
    assert sum(part.size for part in parts.values()) == flat.size
    assert parts["r1_h2r_weight"].shape == (2, 4)
    assert numpy.array_equal(parts["l0_i2h_weight"].asnumpy().ravel(), flat.asnumpy()[: 16 * 3])
    parts["l0_i2h_weight"][:] = 0
    assert flat[0].item() != 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_hybridized_layer_gives_states_whenever_its_first_call_was_with_states(version: Any) -> None:
    dialect.use_version(version)
    arrays: Any = nd if version == 1 else np
    x = arrays.ones((3, 2, 4))
    for with_states in (True, False):
        layer = rnn.LSTM(2)
        layer.initialize()
        layer.hybridize()
        states = layer.begin_state(batch_size=2)
        calls = [lambda: layer(x, states), lambda: layer(x)]  # noqa: B023
        first, second = calls if with_states else calls[::-1]
        assert isinstance(first(), list) == with_states
        assert isinstance(second(), list) == with_states


@pytest.mark.parametrize("version", [1, 2])
def test_a_hybridized_cell_is_compiled_in_mxnet_1_only(version: Any) -> None:
    dialect.use_version(version)
    cell, x = rnn.GRUCell(2, input_size=4), (nd if version == 1 else np).ones((2, 4))
    cell.initialize()
    cell.hybridize()
    assert isinstance(cell(x, cell.begin_state(2)), list if version == 1 else tuple)
