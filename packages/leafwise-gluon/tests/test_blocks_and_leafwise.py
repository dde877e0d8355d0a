"""Leafwise's functions and PyTorch's on Blocks of both dialects."""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import leafwise as lw
from leafwise_gluon import MXNetError, Trainer, as_mxnet, autograd, dialect, modes, nd, nn
from leafwise_gluon import np as np_module
from leafwise_gluon.block.naming import NameManager
from leafwise_gluon.context import gpu, num_gpus
from leafwise_gluon.npx.conversions import gpu_memory_info
from leafwise_gluon.parameter.constant import Constant

np: Any = np_module
# MXNet 2.x gives this warning for every parameter that is shared.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter .* is already initialized")


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> Iterator[int]:
    dialect.use_version(request.param)
    modes.back_to_the_dialect()
    try:
        with NameManager():
            yield request.param
    finally:
        dialect.use_version(2)
        modes.back_to_the_dialect()


def _ones(*shape: int) -> Any:
    return nd.ones(shape) if dialect.is_v1() else np.ones(shape)


def _net() -> Any:
    """Two layers that share a weight, and one whose input size is not known."""
    second: nn.Block
    first = nn.Dense(4, in_units=4)
    if dialect.is_v1():
        second = nn.Dense(4, in_units=4, params=first.params)
    else:
        second = nn.Dense(4, in_units=4).share_parameters(first.collect_params())
    net = nn.Sequential()
    net.add(first, second, nn.Dense(3), nn.BatchNorm())
    return net


@pytest.fixture
def saved(version: int, tmp_path: Path) -> tuple[Path, Any]:
    net = _net()
    net.initialize()
    net(_ones(2, 4))
    net[2].bias.set_data(_ones(3))
    return tmp_path / lw.save(net, tmp_path / "net.safetensors"), net


@pytest.mark.parametrize("initialized", [False, True])
def test_the_first_forward_pass_keeps_what_was_loaded(saved: tuple[Path, Any], initialized: bool) -> None:
    path, trained = saved
    net = _net()
    if initialized:
        net.initialize()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    lw.load(net, path)
    assert numpy.array_equal(net(_ones(2, 4)).asnumpy(), trained(_ones(2, 4)).asnumpy())
    assert net[2].weight.shape == (3, 4)
    assert net[0].weight is net[1].weight
    assert all(
        ours is theirs for ours, theirs in zip(optimizer.param_groups[0]["params"], net.parameters(), strict=True)
    )


def test_loading_a_shape_that_contradicts_the_known_sizes_is_an_error(saved: tuple[Path, Any]) -> None:
    path, _ = saved
    net = nn.Sequential()
    net.add(nn.Dense(4, in_units=4), nn.Dense(4, in_units=4), nn.Dense(5, use_bias=False))
    net.initialize()
    lw.load(net, path, allow="unexpected")
    with pytest.raises(AssertionError, match="incompatible"):
        net(_ones(2, 4))


def test_the_code_of_a_path_gives_the_tensor(saved: tuple[Path, Any]) -> None:
    _, net = saved
    for leaf in lw.tree(net):
        assert eval(leaf.path.code("net")) is leaf.value


def test_the_trainer_leaves_frozen_parameters_as_they_are(saved: tuple[Path, Any]) -> None:
    _, net = saved
    lw.freeze(net, "0")
    assert (net[0].weight.grad_req, net[2].weight.grad_req) == ("null", "write")
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    before = [net[index].bias.data().asnumpy() for index in (0, 2)]
    with autograd.record():
        loss = net[2](net[0](_ones(2, 4))).sum()
    loss.backward()
    trainer.step(1, ignore_stale_grad=True)
    frozen, trained = (net[index].bias.data().asnumpy() for index in (0, 2))
    assert numpy.array_equal(frozen, before[0])
    assert not numpy.array_equal(trained, before[1])
    with pytest.raises(RuntimeError, match="grad_req='null'"):
        net[0].weight.grad()
    net[0].weight.grad_req = "write"
    assert net[0].weight.tensor.requires_grad


def test_a_parameter_cast_to_integers_and_back_has_a_gradient_again(version: int) -> None:
    layer = nn.Dense(2, in_units=2)
    layer.initialize()
    layer.cast("int32")
    layer.cast("float32")
    assert layer.weight.grad_req == "write"
    assert layer.weight.tensor.requires_grad


def test_constants_have_the_dtypes_of_mxnet() -> None:
    doubles = numpy.ones(2)
    for version, np_mode, expected in [(1, False, "float32"), (1, True, "float64"), (2, True, "float32")]:
        with as_mxnet(version):  # type: ignore[arg-type]
            (modes.set_np if np_mode else modes.reset_np)()
            constant = Constant("c", doubles) if version == 1 else Constant(doubles)
            constant.initialize()
            assert numpy.dtype(constant.data().dtype) == expected
    integers = Constant(np.array([1, 2], dtype="int32"))
    integers.initialize()
    assert integers.data().dtype == numpy.int32
    assert integers.data().tolist() == [1, 2]


def test_private_helpers_that_libraries_import() -> None:
    with as_mxnet(1):
        loss, utils = import_module("mxnet.gluon.loss"), import_module("mxnet.gluon.utils")
        weighted = loss._apply_weighting(nd, nd.ones((2, 3)), 2.0, nd.array([[1], [3]]))
        assert weighted.asnumpy().tolist() == [[2, 2, 2], [6, 6, 6]]
        assert loss._reshape_like(nd, nd.ones((2, 3)), nd.ones((3, 2))).shape == (3, 2)
        assert utils._indent("a\nb", 3) == "a\n   b"
        assert utils._get_repo_file_url("gluon/dataset", "x.zip").endswith("/gluon/dataset/x.zip")
    with as_mxnet(2):
        loss = import_module("mxnet.gluon.loss")
        weighted = loss._apply_weighting(np.ones((2, 3)), None, np.array([[1], [3]]))
        assert (loss._batch_mean(weighted, 0).tolist(), loss._batch_sum(weighted, 1).tolist()) == ([1, 3], [4, 4, 4])


def test_a_gpu_that_is_not_there_is_mxnets_error(version: int) -> None:
    absent = gpu(num_gpus())
    layer = nn.Dense(2, in_units=2)
    layer.initialize()
    uses: list[Callable[[], Any]] = [
        lambda: nd.array([0], ctx=absent),
        lambda: nd.zeros((1,), ctx=absent),
        lambda: np.ones(2, ctx=absent),
        lambda: _ones(2).as_in_context(absent),
        lambda: nd.random.uniform(shape=(2,), ctx=absent),
        lambda: nn.Dense(2, in_units=2).initialize(ctx=absent),
        lambda: (layer.weight.reset_ctx if version == 1 else layer.weight.reset_device)(absent),
        lambda: gpu_memory_info(num_gpus()),
    ]
    for use in uses:
        with pytest.raises(MXNetError, match="num_gpus"):
            use()


def test_importlib_finds_the_replaced_modules() -> None:
    with as_mxnet(2):
        assert find_spec("mxnet") is not None
        assert find_spec("mxnet.gluon.nn") is not None
        assert find_spec("mxnet.no_such_module") is None
