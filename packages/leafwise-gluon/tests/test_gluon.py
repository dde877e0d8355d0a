"""The Gluon front end raises MXNet's errors, and its blocks are PyTorch modules."""

import copy
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import leafwise as lw
from leafwise_gluon import (
    Block,
    DeferredInitializationError,
    HybridBlock,
    MXNetError,
    Parameter,
    as_mxnet,
    autograd,
    dialect,
    init,
    nn,
    np,
    npx,
)
from leafwise_gluon.arrays.ndarray import wrap


@pytest.fixture
def net() -> Any:
    """The deck's second network: layers 1 and 2 share their parameters."""
    np.random.seed(0)
    net = nn.Sequential()
    shared, clone = nn.Dense(8, activation="relu"), nn.Dense(8, activation="relu")
    clone.share_parameters(shared.collect_params())
    net.add(nn.Dense(8, activation="relu"), shared, clone, nn.Dense(10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        net.initialize()
    net(np.random.uniform(size=(2, 20)))
    return net


# -- the table of errors ---------------------------------------------------------------------------------


def test_reading_data_before_initialize_is_an_error() -> None:
    for read in (Parameter.data, Parameter.grad, Parameter.list_data):
        with pytest.raises(RuntimeError, match=r"^Parameter 'weight' has not been initialized\. Note that you should"):
            read(nn.Dense(3).weight)
    with pytest.raises(RuntimeError, match="has not been initialized"):
        nn.Dense(3, in_units=2)(np.ones((1, 2)))


def test_reading_data_and_grad_while_initialization_is_deferred_is_an_error() -> None:
    layer = nn.Dense(3)
    layer.initialize()
    for read in (layer.weight.data, layer.weight.grad):
        with pytest.raises(DeferredInitializationError, match="because initialization was deferred") as caught:
            read()
        assert isinstance(caught.value, MXNetError)
        assert isinstance(caught.value, RuntimeError)
    assert layer.bias.data().tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [(3, -1), (3, 0)])
def test_an_unknown_shape_that_may_not_be_deferred_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"Cannot initialize Parameter 'weight' because it has invalid shape: \(3, -1\)\."
    ):
        Parameter("weight", shape=shape).initialize()


def test_initializing_twice_warns_and_changes_nothing() -> None:
    layer = nn.Dense(2, in_units=2)
    layer.initialize()
    before = layer.weight.data().copy()
    message = "Parameter 'weight' is already initialized, ignoring. Set force_reinit=True to re-initialize."
    with pytest.warns(UserWarning, match="already initialized") as caught:
        layer.initialize()
    assert [str(warning.message) for warning in caught] == [message, message.replace("weight", "bias")]
    assert np.array_equal(layer.weight.data(), before)
    layer.initialize(force_reinit=True)
    assert not np.array_equal(layer.weight.data(), before)


def test_reading_a_gradient_with_grad_req_null_is_an_error() -> None:
    layer = nn.Dense(2, in_units=2)
    layer.initialize()
    layer.weight.grad_req = "null"
    with pytest.raises(RuntimeError, match="Cannot get gradient array for Parameter 'weight' because grad_req='null'"):
        layer.weight.grad()
    assert not layer.weight.tensor.requires_grad
    with pytest.raises(AssertionError, match="grad_req must be one of 'write', 'add', or 'null', but got 'often'"):
        layer.weight.grad_req = "often"


def test_a_wrong_input_width_names_both_shapes() -> None:
    layer = nn.Dense(3, in_units=4)
    layer.initialize()
    with pytest.raises(AssertionError, match=r"Expected shape \(3, 5\) is incompatible with given shape \(3, 4\)"):
        layer(np.ones((2, 5)))  # the first call infers shapes
    layer(np.ones((2, 4)))
    with pytest.raises(MXNetError, match=r"inconsistent, Provided = \[3,4\], inferred shape=\(3,5\)"):
        layer(np.ones((2, 5)))
    with pytest.raises(MXNetError, match=r"input of shape \(2, 5\) does not fit a weight of shape \(3, 4\)"):
        layer(torch.ones(2, 5))


def test_sharing_from_anything_but_a_dict_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'shared' should be in type of Dict\. Get type <class 'list'>!"):
        nn.Dense(2).share_parameters([1])
    layer = nn.Dense(2)
    assert layer.share_parameters(None) is layer


def test_sharing_an_unknown_name_warns() -> None:
    source = nn.Dense(2, in_units=3)
    with pytest.warns(UserWarning, match="Parameter name nowhere is not in the current model!"):
        nn.Dense(2).share_parameters({"weight": source.weight, "nowhere": source.bias})


@pytest.mark.parametrize("shape", [(3, 5), (2, 4), (3,)])
def test_a_shape_that_contradicts_what_is_known_is_an_error(shape: tuple[int, ...]) -> None:
    weight = nn.Dense(3, in_units=4).weight
    with pytest.raises(
        AssertionError, match=r"Expected shape .* is incompatible with given shape \(3, 4\) for Parameter"
    ):
        weight.shape = shape
    with pytest.raises(AssertionError, match="incompatible"):
        weight.set_data(np.ones(shape))


def test_an_attribute_does_not_change_its_type() -> None:
    block = Block()
    block.layer = nn.Dense(2)
    block.scale = Parameter("scale", shape=(2,))
    with pytest.raises(TypeError, match="Changing attribute type for layer"):
        block.layer = 3
    with pytest.raises(TypeError, match="Changing attribute type for scale"):
        block.scale = nn.Dense(2)
    block.layer = nn.Dense(3)
    assert list(block.collect_params()) == ["scale", "layer.weight", "layer.bias"]


def test_an_unregistered_initializer_is_an_error() -> None:
    with pytest.raises(AssertionError, match="nonsense is not registered"):
        nn.Dense(2, in_units=2).initialize(init="nonsense")
    with pytest.raises(AssertionError, match="initializer must be of string type"):
        nn.Dense(2, in_units=2).initialize(init=3)
    with pytest.raises(ValueError, match="requires at least 2D"):
        Parameter("scale", shape=(2,), init=init.Xavier()).initialize()


def test_backward_outside_of_record_is_an_error() -> None:
    layer = nn.Dense(1, in_units=2)
    layer.initialize()
    with pytest.raises(MXNetError, match=r"use autograd\.record\(\)"):
        layer(np.ones((1, 2))).backward()


# -- behavior --------------------------------------------------------------------------------------------


def test_set_data_while_deferred_is_kept_for_later() -> None:
    layer = nn.Dense(2)
    layer.initialize()
    layer.weight.set_data(np.ones((2, 3)))
    assert layer.weight.shape == (2, 3)
    assert layer(np.ones((1, 3))).tolist() == [[3, 3]]


def test_a_gradient_is_overwritten_unless_grad_req_is_add() -> None:
    layer = nn.Dense(1, in_units=2, use_bias=False)
    layer.initialize()

    def once() -> None:
        with autograd.record():
            loss = layer(np.ones((1, 2))).sum()
        loss.backward()

    assert layer.weight.grad().tolist() == [[0, 0]]
    once()
    once()
    assert layer.weight.grad().tolist() == [[1, 1]]
    layer.weight.grad_req = "add"
    assert layer.weight.grad().tolist() == [[0, 0]]
    once()
    once()
    assert layer.weight.grad().tolist() == [[2, 2]]
    layer.weight.zero_grad()
    assert layer.weight.grad().tolist() == [[0, 0]]


def test_record_and_pause_turn_recording_and_training_on_and_off() -> None:
    x = np.arange(3)
    x.attach_grad()
    assert not autograd.is_recording()
    with autograd.record():
        assert autograd.is_recording()
        assert autograd.is_training()
        y = (x * x).sum()
        with autograd.pause():
            assert not autograd.is_recording()
            assert not autograd.is_training()
            unseen = x * 100
        with autograd.predict_mode():
            assert not autograd.is_training()
    y.backward()
    assert x.grad.tolist() == [0, 2, 4]
    assert not unseen.tensor.requires_grad
    assert not (x * x).tensor.requires_grad


def test_random_numbers_are_the_same_as_in_mxnet() -> None:
    npx.random.seed(7)
    assert str(np.random.uniform(size=3)) == "[0.42855945 0.91751623 0.80797774]"
    np.random.seed(7)
    first = np.random.uniform(-1, 1, size=(2,))
    assert str(first) == "[-0.1428811   0.83503246]"
    assert str(np.random.normal(size=5)) == "[-0.83998173  1.0147312  -1.001695   -0.25585568  0.72278   ]"
    assert str(np.random.normal(1, 2, size=(3,))) == "[2.3264873  0.69510835 4.097233  ]"


def test_arrays_print_and_default_as_in_mxnet() -> None:
    assert repr(np.arange(3)) == "array([0., 1., 2.])"
    assert repr(np.ones((2, 2), dtype="int32")) == "array([[1, 1],\n       [1, 1]], dtype=int32)"
    assert repr(np.array(3.5)) == "array(3.5)"
    assert str(np.array(3.5)) == f"{np.array(3.5)}" == "3.5"
    assert np.array([1, 2]).dtype == "float32"
    x = np.array([[1, 2], [3, 4]])
    assert (x.shape, x.size, x.ndim) == ((2, 2), 4, 2)
    assert repr(x > 2) == "array([[False, False],\n       [ True,  True]])"
    assert isinstance(x @ x, np.ndarray)
    assert isinstance(x[0], np.ndarray)
    assert x.astype("int32").dtype == "int32"
    assert np.dot(x, x).tolist() == [[7, 10], [15, 22]]
    assert x.sum(axis=0, keepdims=True).tolist() == [[4, 6]]
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    assert np.concatenate([x, x], axis=1).shape == (2, 4)
    assert np.maximum(x, 2).tolist() == [[2, 2], [3, 4]]
    assert type(x.asnumpy()).__module__ == "numpy"


def test_a_sequential_can_be_indexed_and_sliced_and_accepts_torch_modules() -> None:
    net = nn.Sequential()
    net.add(nn.Dense(4, in_units=3), torch.nn.LayerNorm(4), nn.Dense(2))
    net.initialize()
    assert isinstance(net(np.ones((1, 3))), np.ndarray)
    assert net[1:][0] is net[1]
    assert len(net[1:]) == 2
    assert net[-1] is net[2]
    with pytest.raises(IndexError):
        net[3]
    with pytest.raises(TypeError, match="accepts Blocks and torch modules, not int"):
        net.add(3)
    hybrid = nn.HybridSequential()
    hybrid.add(nn.Dense(1, in_units=1))
    hybrid.hybridize()
    assert isinstance(hybrid, HybridBlock)


def test_collect_params_matches_from_the_start() -> None:
    net = nn.Sequential()
    net.add(nn.Dense(1, in_units=1), nn.Dense(1, in_units=1))
    assert list(net.collect_params("0")) == ["0.weight", "0.bias"]
    assert list(net.collect_params("weight")) == []
    assert list(net.collect_params(".*weight")) == ["0.weight", "1.weight"]


def test_a_parameter_has_the_dtype_it_was_given_or_cast_to() -> None:
    layer = nn.Dense(1, in_units=2, dtype="float64")
    layer.initialize()
    assert layer.weight.data().dtype == "float64"
    layer.weight.cast("float16")
    assert layer.weight.tensor.dtype is torch.float16
    assert layer.weight.dtype == "float16"


# -- PyTorch's methods on the same net -------------------------------------------------------------------


def test_a_block_is_a_module_and_its_parameters_are_pytorchs(net: Any) -> None:
    assert isinstance(net, torch.nn.Module)
    names = [name for name, _ in net.named_parameters()]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert list(net.state_dict()) == list(net.collect_params())
    assert net.state_dict()["1.weight"].data_ptr() == net.state_dict()["2.weight"].data_ptr()
    out = net(torch.ones(2, 20))
    assert type(out) is torch.Tensor
    assert out.requires_grad


def test_a_training_step_moves_a_shared_parameter_once(net: Any) -> None:
    untied = copy.deepcopy(net)
    untied.register_child(copy.deepcopy(untied[1]), "2")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.rand(4, 20)
    for model in (net, untied):
        model(x).square().sum().backward()
    both = untied[1].weight.tensor.grad + untied[2].weight.tensor.grad
    assert both.abs().sum() > 0
    torch.testing.assert_close(net[1].weight.tensor.grad, both)
    before = net[1].weight.data().copy()
    optimizer.step()
    torch.testing.assert_close(net[2].weight.tensor.detach(), torch.Tensor(before.asnumpy()) - 0.1 * both)
    assert net[1].weight is net[2].weight


def test_copies_and_pickles_keep_shared_parameters(net: Any) -> None:
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert again[1].weight is again[2].weight
        assert again[1].weight.tensor is again[1]._parameters["weight"]
        assert again[1].weight.tensor is not net[1].weight.tensor
        assert [str(tie.leaf.path) for tie in lw.tree(again).ties] == ["1.weight", "1.bias"]
        assert torch.equal(again(torch.ones(1, 20)), net(torch.ones(1, 20)))


def test_moving_and_casting_a_module_moves_its_gluon_parameters(net: Any) -> None:
    net.double()
    assert net[1].weight.data().dtype == "float64"
    assert net[1].weight.tensor is net[1]._parameters["weight"]
    assert net(np.ones((1, 20), dtype="float64")).dtype == "float64"
    assert net[1].weight.dtype == "float64"
    assert repr(net[1].weight) == "Parameter (shape=(8, 8), dtype=float64)"


def test_a_parameter_read_in_a_custom_block_gets_its_gradient() -> None:
    class Scale(Block):
        def __init__(self) -> None:
            super().__init__()
            self.factor = Parameter("factor", shape=(2,), init=init.One())

        def forward(self, x: Any) -> Any:
            return x * self.factor.data()

    block = Scale()
    block.initialize()
    assert repr(block.factor) == "Parameter (shape=(2,), dtype=<class 'numpy.float32'>)"
    with autograd.record():
        loss = block(np.array([3, 4])).sum()
        with torch.no_grad():
            assert not block(np.array([3, 4])).tensor.requires_grad
    loss.backward()
    assert block.factor.grad().tolist() == [3, 4]


def test_an_array_is_a_leaf_of_a_container() -> None:
    x = np.array([[1, 2], [3, 4]])
    tree = lw.tree({"x": x, "y": wrap(x.tensor.T)})
    assert tree["x"].value is x
    assert (tree["x"].shape, tree["x"].dtype, tree["x"].nbytes) == ((2, 2), "float32", 16)
    assert [str(name.op) for name in tree["x"].names] == ["same", "transpose"]
    assert tree["x"].numpy().tolist() == [[1, 2], [3, 4]]
    tree["y"].write(np.array([[5, 6], [7, 8]]))
    assert x.tolist() == [[5, 7], [6, 8]]


def test_the_functions_of_leafwise_work_on_arrays_in_a_container(tmp_path: Path) -> None:
    x = np.array([[1, 2], [3, 4]])
    x.attach_grad()
    with autograd.record():
        y = (x * x).sum()
    y.backward()
    tree = lw.tree({"x": x, "row": x[0], "column": x[:, 0]})
    assert [str(name.path) for name in tree["x"].names] == ["x", "row"]
    assert tree["x"].trainable
    assert tree["x"].grad.tolist() == [[2, 4], [6, 8]]
    assert lw.stats({"x": x})["x"].mean == 2.5
    assert lw.stats({"x": x}, of="grad")["x"].mean == 5
    assert "1 leaf: 1 changed" in lw.diff({"x": x}, {"x": x + 1}).text()
    lw.save({"x": x}, tmp_path / "x.safetensors")
    x[:] = 0
    lw.load({"x": x}, tmp_path / "x.safetensors")
    assert x.tolist() == [[1, 2], [3, 4]]
    assert lw.clip({"x": x}, 1.0).total == pytest.approx(120**0.5)
    assert float((x.grad**2).sum()) == pytest.approx(1)
    with pytest.raises(lw.Error, match=r"cannot freeze x: it is a Gluon array; use attach_grad\(\) or drop_grad\(\)"):
        lw.freeze({"x": x}, "**")


def test_leafwise_sees_a_shared_parameter_as_a_tie(net: Any) -> None:
    tree = lw.tree(net)
    assert [[str(name.path) for name in tie.names] for tie in tree.ties] == [
        ["1.weight", "2.weight"],
        ["1.bias", "2.bias"],
    ]
    assert tree.counts.parameters == 8 * 20 + 8 + 8 * 8 + 8 + 10 * 8 + 10
    assert tree["1.weight"].role == "linear.weight"
    assert "also 2.weight" in tree.text()
    for leaf in tree:
        for name in leaf.names:
            assert name.path.fetch(net) is leaf.value
            assert eval(name.path.code("net"), {"net": net}) is leaf.value
    assert tree["3.bias"].path.code("net") == "net[3].bias.tensor"
    tree["1.weight"].write(np.zeros((8, 8)))
    assert net[2].weight.data().sum() == 0


def test_leafwise_shows_a_net_whose_shapes_are_not_known_yet() -> None:
    net = nn.Sequential()
    net.add(nn.Dense(8), nn.Dense(1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    tree = lw.tree(net)
    assert tree["0.weight"].shape is None
    net.initialize()
    net(np.ones((1, 3)))
    assert tree["0.weight"].shape == (8, 3)
    # The parameter always stays the same object, so an optimizer that was made early has the right one.
    assert optimizer.param_groups[0]["params"][0] is net[0].weight.tensor


def test_as_mxnet_works_as_a_context_manager_and_permanently() -> None:
    assert "mxnet" not in sys.modules
    with as_mxnet():
        import mxnet as mx
        from mxnet.gluon import nn as their_nn

        assert their_nn.Dense is nn.Dense
        assert mx.np.ones is np.ones
        assert str(Parameter) == "<class 'mxnet.gluon.parameter.Parameter'>"
        assert mx.cpu().torch_device == torch.device("cpu")
    assert "mxnet" not in sys.modules
    assert Parameter.__module__.startswith("leafwise_gluon.parameter")
    for_good = as_mxnet()
    try:
        import mxnet.gluon

        assert mxnet.gluon.Block is Block
    finally:
        for_good.undo()
    for_good.undo()  # a second undo does nothing
    with pytest.raises(ModuleNotFoundError):
        import mxnet.np


# -- arrays, copies and state dicts -----------------------------------------------------------------------


def dense(**options: Any) -> Any:
    layer = nn.Dense(1, in_units=2, use_bias=False, **options)
    layer.initialize()
    return layer


def step(layer: Any) -> None:
    with autograd.record():
        loss = layer(np.ones((1, 2))).sum()
    loss.backward()


def test_an_array_from_data_shows_every_kind_of_write() -> None:
    layer = dense()
    held, row = layer.weight.data(), layer.weight.data()[0]
    held[0, 0] = 3
    held += 1
    row[:] = 5
    assert str(held) == "[[5. 5.]]"
    layer.weight.set_data(np.ones((1, 2)))
    assert str(held) == str(held.copy()) == "[[1. 1.]]"
    optimizer = torch.optim.SGD(layer.parameters(), lr=1)
    step(layer)
    optimizer.step()
    assert str(held) == "[[0. 0.]]"


def test_changing_grad_req_resets_the_gradient() -> None:
    layer = dense()
    step(layer)
    layer.setattr("grad_req", "add")
    step(layer)
    step(layer)
    assert layer.weight.grad().tolist() == [[2, 2]]
    layer.initialize(force_reinit=True)
    assert layer.weight.grad().tolist() == [[0, 0]]


def test_a_copy_overwrites_its_gradients_too() -> None:
    for again in (copy.deepcopy(dense()), pickle.loads(pickle.dumps(dense()))):
        step(again)
        step(again)
        assert again.weight.grad().tolist() == [[1, 1]]


def test_lists_and_numpy_arrays_can_be_assigned() -> None:
    import numpy

    x = np.zeros((2, 2))
    x[:] = [[1, 2], [3, 4]]
    x[0] = numpy.ones(2)
    x[1, 1] = numpy.float32(7)
    assert x.tolist() == [[1, 1], [3, 7]]


def test_reductions_and_indexing_work_as_in_numpy() -> None:
    x = np.array([[1, 2], [3, 4]])
    assert float(x.std()) == pytest.approx(1.1180340)
    assert float(x.var()) == 1.25
    assert x.max(axis=1).tolist() == [2, 4]
    assert x.min(axis=0).tolist() == [1, 2]
    assert float(x.max()) == 4
    assert x.transpose().tolist() == x.transpose((1, 0)).tolist() == [[1, 3], [2, 4]]
    assert x.dot(x).tolist() == [[7, 10], [15, 22]]
    assert x[::-1].tolist() == [[3, 4], [1, 2]]
    assert x[:, ::-1].tolist() == [[2, 1], [4, 3]]
    assert np.arange(4)[np.array([0, 2])].tolist() == [0, 2]
    assert x[x > 2].tolist() == [3, 4]


def test_dtypes_are_shown_and_compared_as_in_mxnet() -> None:
    assert repr(np.ones(2, dtype="float64")) == "array([1., 1.], dtype=float64)"
    assert repr(np.full((2,), 3)) == "array([3, 3], dtype=int64)"
    assert "shape" not in repr(np.arange(2000))
    assert dense().weight.dtype == np.float32
    assert repr(dense(dtype=np.float64).weight) == "Parameter (shape=(1, 2), dtype=float64)"


def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(TypeError):
        np.ones(2, dtyp="int32")  # type: ignore[call-arg]
    assert np.eye(2, k=1).tolist() == [[0, 1], [0, 0]]


def test_copies_under_record_are_differentiated() -> None:
    x = np.ones(3)
    x.attach_grad()
    with autograd.record():
        y = (x.copy() * 2 + np.array(x) * 3).sum()
    y.backward()
    assert x.grad.tolist() == [5, 5, 5]


def attached_inside(grad_req: str, backwards: int = 1) -> tuple[Any, Any]:
    """The gradients of an array, and of one computed from it with `attach_grad` inside of `record()`."""
    x = np.ones(2)
    x.attach_grad()
    with autograd.record():
        y = x * 2
        y.attach_grad(grad_req)
        z = (y * 3).sum()
    held = y.grad
    for _ in range(backwards):
        z.backward(retain_graph=True)
    assert held.tolist() == y.grad.tolist()
    return x.grad.tolist(), y.grad.tolist()


def test_attach_grad_on_a_computed_array_cuts_the_graph_in_version_1_only() -> None:
    assert attached_inside("write") == attached_inside("write", 2) == ([6, 6], [3, 3])
    assert attached_inside("add", 2) == ([6, 6], [6, 6])
    dialect.use_version(1)
    try:
        assert attached_inside("write") == ([0, 0], [3, 3])
    finally:
        dialect.use_version(2)


def test_drop_grad_leaves_a_computed_array_connected() -> None:
    x = np.ones(2)
    x.attach_grad()
    with autograd.record():
        y = x * 2
        y.attach_grad()
        y.attach_grad()
        y.drop_grad()
        z = (y * 3).sum()
    assert y.grad is None
    z.backward()
    assert x.grad.tolist() == [6, 6]


def test_backward_of_an_array_with_a_gradient_is_one() -> None:
    x = np.ones(2)
    x.attach_grad()
    x.backward()
    x.backward()
    assert x.grad.tolist() == [1, 1]


def test_arrays_are_copied_and_pickled() -> None:
    x = np.array([1, 2])
    for again in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert isinstance(again, np.ndarray)
        assert again.tolist() == [1, 2]
        again[0] = 9
    assert x.tolist() == [1, 2]


def test_a_state_dict_loads_into_a_net_whose_shapes_are_not_known_yet(net: Any) -> None:
    fresh = nn.Sequential()
    fresh.add(*[nn.Dense(units, activation="relu") for units in (8, 8, 8)], nn.Dense(10))
    fresh.load_state_dict(net.state_dict())
    x = torch.rand(2, 20)
    assert torch.equal(fresh(x), net(x))


def test_functional_call_replaces_parameters() -> None:
    layer = dense()
    given = {"weight": torch.full((1, 2), 7.0)}
    assert torch.func.functional_call(layer, given, (torch.ones(1, 2),)).tolist() == [[14]]


def test_a_net_can_be_cast_before_its_shapes_are_known() -> None:
    by_torch, by_gluon = nn.Dense(2), nn.Dense(2)
    for layer in (by_torch, by_gluon):
        layer.initialize()
    by_torch.double()
    by_gluon.setattr("dtype", "float64")
    for layer in (by_torch, by_gluon):
        assert layer(np.ones((1, 3), dtype="float64")).dtype == "float64"
        assert layer.weight.dtype == layer.bias.dtype == "float64"


def test_an_empty_batch_passes_and_a_deleted_parameter_is_gone() -> None:
    assert dense()(np.ones((0, 2))).shape == (0, 1)
    block = Block()
    block.w = Parameter("w", shape=(2,))
    del block.w
    assert not hasattr(block, "w")
    assert block.collect_params() == {}


def test_children_are_weak_references() -> None:
    net = nn.Sequential()
    net.add(dense())
    assert [child() for child in net._children.values()] == [net[0]]
