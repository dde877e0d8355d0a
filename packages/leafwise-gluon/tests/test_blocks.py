"""Blocks and parameters where they meet PyTorch and leafwise, and what MXNet cannot show."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

import leafwise as lw
from leafwise_gluon import (
    Constant,
    HybridBlock,
    MXNetError,
    Parameter,
    SymbolBlock,
    autograd,
    dialect,
    init,
    modes,
    nd,
    nn,
    np,
    npx,
)
from leafwise_gluon.block.naming import NameManager


@pytest.fixture
def mxnet1() -> Iterator[None]:
    """The dialect of MXNet 1.x, with names that are counted from zero."""
    dialect.use_version(1)
    modes.back_to_the_dialect()
    try:
        with NameManager():
            yield
    finally:
        dialect.use_version(2)


def tied() -> Any:
    """Two layers with the same parameters."""
    net, first, second = nn.Sequential(), nn.Dense(2, in_units=2), nn.Dense(2, in_units=2)
    second.share_parameters(first.collect_params())
    net.add(first, second)
    first.initialize()
    return net


def is_in_step(net: Any) -> bool:
    """Whether both layers have the tensor of their one Gluon parameter."""
    return net[0].weight.tensor is net[0]._parameters["weight"] is net[1]._parameters["weight"]


def test_loading_with_assign_and_moving_to_meta_keep_shared_parameters() -> None:
    net = tied()
    saved = {name: values.double() for name, values in net.state_dict().items()}
    net.load_state_dict(saved, assign=True)
    assert is_in_step(net)
    assert net[0].weight.dtype == "float64"
    net.to("meta")
    assert is_in_step(net)
    net.to_empty(device="cpu")
    assert is_in_step(net)
    net.load_state_dict(saved)
    assert net[1].weight.data().tolist() == saved["0.weight"].tolist()
    assert [str(tie.leaf.path) for tie in lw.ties(net)] == ["0.weight", "0.bias"]


def test_a_block_on_several_contexts_has_replicas_and_is_refused_by_leafwise_and_torch() -> None:
    net = nn.Dense(2, in_units=2)
    net.initialize(ctx=[npx.cpu(0), npx.cpu(1)])
    first, second = net.weight.list_data()
    second[:] = 0
    assert first.asnumpy().any()
    assert net.weight.tensor is net._parameters["weight"] is first.tensor
    with pytest.raises(lw.Unsupported, match=r"several contexts: weight of a Dense is on \[cpu\(0\), cpu\(1\)\]"):
        lw.tree(net)
    with pytest.raises(MXNetError, match=r"moving or casting weight by PyTorch.*use net\.cast\(\)"):
        net.double()
    net.cast("float64")
    assert [array.dtype for array in net.weight.list_data()] == ["float64", "float64"]
    net.reset_device(npx.cpu(0))
    assert lw.tree(net)["weight"].shape == (2, 2)


def test_a_new_gradient_shows_in_arrays_and_views_that_are_held() -> None:
    layer = nn.Dense(1, in_units=2, use_bias=False)
    layer.initialize()

    def step(factor: float) -> None:
        with autograd.record():
            loss = (layer(np.ones((1, 2))) * factor).sum()
        loss.backward()

    step(1)
    whole, row = layer.weight.grad(), layer.weight.grad()[0]
    step(2)
    assert whole.tolist() == [[2, 2]]
    del whole
    step(3)
    assert row.tolist() == [3, 3]
    assert layer.weight.grad().tolist() == [[3, 3]]


def test_what_a_hook_returns_is_ignored_unless_it_is_pytorchs() -> None:
    layer = nn.Dense(1, in_units=1)
    layer.initialize(init.One())
    with layer.register_forward_hook(lambda block, inputs, output: output * 7):
        assert layer(np.ones((1, 1))).item() == 1
    layer.register_forward_hook(lambda block, inputs, output: output * 7, prepend=True)
    assert layer(np.ones((1, 1))).item() == 7


def test_copies_and_pickles_of_blocks_of_mxnet_1_keep_names_and_sharing(mxnet1: None) -> None:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        shared = nn.Dense(2, in_units=2)
        net.add(shared, nn.Dense(2, in_units=2, params=shared.params))
    net.initialize()
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert list(again.collect_params()) == ["net_dense0_weight", "net_dense0_bias"]
        assert again[0].weight is again[1].weight is again[1].params["net_dense0_weight"]
        assert is_in_step(again)
        assert again[1].name == "net_dense1"
        assert [str(tie.leaf.path) for tie in lw.ties(again)] == ["0.weight", "0.bias"]


class OwnDense(HybridBlock):
    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weight = self.params.get("weight", shape=(units, 0), allow_deferred_init=True)
        self._units = units

    def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:  # noqa: N803
        return F.FullyConnected(x, weight, num_hidden=self._units, no_bias=True)


def test_a_block_with_hybrid_forward_is_a_module_of_pytorch(mxnet1: None) -> None:
    block = OwnDense(3)
    block.initialize(init.One())
    assert block(nd.ones((2, 4))).asnumpy().tolist() == [[4, 4, 4]] * 2
    out = block(torch.ones(2, 4))
    out.sum().backward()
    assert type(out) is torch.Tensor
    assert block.weight.tensor.grad.tolist() == [[2] * 4] * 3
    assert [name for name, _ in block.named_parameters()] == ["weight"]


def test_a_shape_that_no_operation_determines_is_an_error_that_says_what_to_do(mxnet1: None) -> None:
    class Unclear(OwnDense):
        def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:  # noqa: N803
            return F.reshape(weight, (5, -1))

    block = Unclear(5)
    block.initialize()
    with pytest.raises(ValueError, match=r"cannot be inferred.*unclear0_weight from reshape.*define infer_shape"):
        block(nd.ones((2, 4)))


def test_symbols_and_sparse_parameters_are_refused_by_name() -> None:
    for call in (SymbolBlock, SymbolBlock.imports, Parameter("w").var):
        with pytest.raises(MXNetError, match="the Gluon front end does not support"):
            call()
    with pytest.raises(MXNetError, match=r"does not support Parameter\(stype='row_sparse'\)"):
        Parameter("w", stype="row_sparse")
    with pytest.raises(MXNetError, match=r"_children\['a'\] = block in MXNet 2\.x; use register_child"):
        nn.Sequential()._children["a"] = nn.Dense(1)


def test_a_hybridized_block_keeps_the_structure_of_its_first_arguments() -> None:
    class Sum(HybridBlock):
        def forward(self, a: Any, b: Any = None) -> Any:
            return a if b is None else a + b

    block, x = Sum(), np.ones(2)
    assert block(x, 1).tolist() == [2, 2]
    block.hybridize()
    with pytest.raises(ValueError, match="When hybridized, the input of HybridBlock"):
        block(x, 1)
    block(x)
    block(x, None)
    with pytest.raises(ValueError, match="does not match the cached version"):
        block(x, x)


def test_an_initializer_that_fails_leaves_a_parameter_without_values() -> None:
    layer = nn.Dense(1, in_units=2, use_bias=False)
    layer.initialize()
    held = layer.weight.data().tolist()
    with pytest.raises(AssertionError, match="nonsense is not registered"):
        layer.initialize("nonsense", force_reinit=True)
    with pytest.raises(RuntimeError, match="has not been initialized"):
        layer(np.ones((1, 2)))
    layer.initialize()
    assert layer.weight.data().tolist() != held


def test_a_block_compiles() -> None:
    net = tied()
    compiled = torch.compile(net, backend="eager")
    x = torch.rand(3, 2)
    assert torch.equal(compiled(x), net(x))


def test_a_block_on_an_empty_list_of_contexts_has_values_nowhere() -> None:
    layer = nn.Dense(2, in_units=3)
    layer.initialize(device=[])
    assert layer.weight.list_data() == layer.weight.list_grad() == layer.weight.list_device() == []
    for use in (layer.weight.data, layer.weight.grad, layer.weight.mean, lambda: layer(np.ones((1, 3)))):
        with pytest.raises(RuntimeError, match=r"was not initialized on device cpu\(0\)\. It was only initialized on"):
            use()
    layer.weight.set_data(np.ones((2, 3)))
    layer.zero_grad()
    layer.initialize(force_reinit=True)
    assert layer(np.ones((1, 3))).shape == (1, 2)


def test_a_gpu_that_does_not_exist_is_an_error_of_mxnet() -> None:
    missing = npx.gpu(torch.cuda.device_count())
    with pytest.raises(MXNetError, match="GPU is not enabled"):
        np.ones(2, ctx=missing)
    with pytest.raises(MXNetError, match="GPU is not enabled"):
        nn.Dense(2, in_units=3).initialize(device=missing)


def test_print_options_may_be_given_by_position() -> None:
    precision = numpy.get_printoptions()["precision"]
    try:
        np.set_printoptions(2)
        assert str(np.array([1.2345])) == "[1.23]"
    finally:
        np.set_printoptions(precision)


def test_a_constant_may_have_integers() -> None:
    constant = Constant(np.array([1, 2], dtype="int32"))
    constant.initialize()
    assert constant.data().tolist() == [1, 2]
    assert constant.data().dtype == numpy.int32


def test_outside_numpy_mode_a_constant_of_mxnet_1_is_float32_unless_it_is_an_array(mxnet1: None) -> None:
    assert Constant("c", numpy.array([1, 2])).dtype == numpy.float32
    assert Constant("c", nd.array([1, 2], dtype="int32")).dtype == numpy.int32


def test_a_hybridized_block_gives_several_results_as_lists() -> None:
    class Several(HybridBlock):
        def forward(self, x: Any) -> Any:
            return x, (x * 2, x * 3)

    block, x = Several(), np.ones(2)
    assert isinstance(block(x), tuple)
    block.hybridize()
    first, rest = block(x)
    assert isinstance(block(x), list)
    assert isinstance(rest, list)
    assert first.tolist() == [1, 1]
