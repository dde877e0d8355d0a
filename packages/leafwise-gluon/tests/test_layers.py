"""Layers beyond what neural_cases.txt measures: with plain tensors, other layouts, roles, modes and wrong arguments."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

import leafwise as lw
from leafwise_gluon import MXNetError, autograd, dialect, loss, modes, nd, nn, np, npx
from leafwise_gluon.nn.lambdas import Concurrent


@pytest.fixture
def version_1() -> Iterator[None]:
    dialect.use_version(1)
    yield
    dialect.use_version(2)
    modes.back_to_the_dialect()


def _random(*shape: int) -> Any:
    return numpy.random.RandomState(7).uniform(-1, 1, shape).astype("float32")


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "Dense": (lambda: nn.Dense(3, activation="tanh"), (2, 4)),
    "Conv2D": (lambda: nn.Conv2D(4, 3, padding=1, groups=2), (1, 2, 5, 5)),
    "Conv2DTranspose": (lambda: nn.Conv2DTranspose(4, 3, strides=2), (1, 2, 5, 5)),
    "MaxPool2D": (lambda: nn.MaxPool2D(ceil_mode=True), (1, 2, 5, 5)),
    "AvgPool2D": (lambda: nn.AvgPool2D(3, ceil_mode=True), (1, 2, 5, 5)),
    "GlobalAvgPool2D": (nn.GlobalAvgPool2D, (1, 2, 5, 5)),
    "BatchNorm": (nn.BatchNorm, (4, 3, 2)),
    "LayerNorm": (nn.LayerNorm, (4, 3)),
    "GroupNorm": (lambda: nn.GroupNorm(2), (2, 4, 3)),
    "InstanceNorm": (nn.InstanceNorm, (2, 4, 3)),
    "PReLU": (nn.PReLU, (2, 3)),
    "SELU": (nn.SELU, (2, 3)),
    "Flatten": (nn.Flatten, (2, 3, 4)),
    "PixelShuffle2D": (lambda: nn.PixelShuffle2D(2), (1, 4, 2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_plain_tensor_gives_a_plain_tensor_with_the_same_values_and_gradients(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make()
    layer.initialize()
    layer(np.array(_random(*shape)))
    x, tensor = np.array(_random(*shape)), torch.from_numpy(_random(*shape)).requires_grad_()
    x.attach_grad()
    with autograd.record():
        expected = layer(x)
    result = layer(tensor)
    assert type(result) is torch.Tensor
    numpy.testing.assert_allclose(result.detach().numpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)
    expected.backward()
    result.sum().backward()
    assert tensor.grad is not None
    numpy.testing.assert_allclose(tensor.grad.numpy(), x.grad.asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Conv2D", "BatchNorm", "LayerNorm", "AvgPool2D"])
def test_a_layer_can_be_compiled(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make()
    layer.initialize()
    tensor = torch.from_numpy(_random(*shape))
    layer.eval()
    expected = layer(tensor)
    compiled = torch.compile(layer, backend="eager")
    torch.testing.assert_close(compiled(tensor), expected)


def test_a_batch_norm_over_tensors_follows_the_mode_of_the_module() -> None:
    layer = nn.BatchNorm(momentum=0.5)
    layer.initialize()
    tensor = torch.tensor([[1.0], [3.0]])
    layer.eval()
    torch.testing.assert_close(layer(tensor), tensor, rtol=1e-4, atol=1e-4)
    assert layer.running_mean.data().item() == 0
    layer.train()
    torch.testing.assert_close(layer(tensor), torch.tensor([[-1.0], [1.0]]), rtol=1e-4, atol=1e-4)
    assert layer.running_mean.data().item() == 1
    assert layer.running_var.data().item() == 1


def test_the_backward_pass_updates_the_running_statistics() -> None:
    layer = nn.BatchNorm(momentum=0.5)
    layer.initialize()
    x = np.array([[1], [3]])
    with autograd.record():
        y = layer(x)
    assert layer.running_mean.data().item() == 0
    y.backward()
    assert layer.running_mean.data().item() == 1
    with autograd.train_mode():
        layer(x)
    with autograd.record(train_mode=False):
        y = layer(x)
    y.backward()
    assert layer.running_mean.data().item() == 1


def test_a_batch_norm_without_scale_keeps_gamma_at_one() -> None:
    layer = nn.BatchNorm(scale=False, gamma_initializer="zeros")
    layer.initialize()
    with autograd.record():
        y = layer(layer(np.array([[1], [3]])))
    y.backward()
    assert layer.gamma.data().item() == 1


def test_a_batch_norm_in_half_precision_keeps_its_parameters_in_single_precision() -> None:
    layer = nn.BatchNorm()
    layer.initialize()
    layer.cast("float16")
    assert layer(np.ones((2, 3), dtype="float16")).dtype == "float16"
    assert layer.gamma.data().dtype == "float32"


@pytest.mark.parametrize("layer", [nn.Conv2D, nn.Conv2DTranspose])
def test_channels_last_is_the_same_convolution_with_the_axes_in_another_order(layer: Any) -> None:
    first, last = layer(3, (2, 3), groups=1), layer(3, (2, 3), layout="NHWC")
    images = _random(2, 4, 5, 6)
    first.initialize()
    last.initialize()
    expected = first(np.array(images))
    last(np.array(images.transpose(0, 2, 3, 1)))
    last.weight.set_data(np.array(first.weight.data().asnumpy().transpose(0, 2, 3, 1)))
    result = last(np.array(images.transpose(0, 2, 3, 1))).asnumpy()
    numpy.testing.assert_allclose(result.transpose(0, 3, 1, 2), expected.asnumpy(), rtol=1e-5, atol=1e-6)


def test_dropout_zeroes_a_fraction_in_training_only() -> None:
    layer = nn.Dropout(0.25)
    x = np.ones((100, 100))
    assert (layer(x) == x).all()
    with autograd.record():
        y = layer(x).asnumpy()
    assert set(numpy.unique(y)) == {numpy.float32(0), numpy.float32(1 / 0.75)}
    assert 0.2 < (y == 0).mean() < 0.3
    with autograd.record():
        rows = nn.Dropout(0.5, axes=(1,))(x).asnumpy()
    assert (rows == rows[:, :1]).all()
    assert 0.2 < (rows == 0).mean() < 0.8
    assert (npx.dropout(x, 0.5, mode="always") == 0).any()


def test_dropout_drops_what_mxnet_drops_for_a_seed() -> None:
    np.random.seed(3)
    with autograd.record():
        y = nn.Dropout(0.3)(np.ones((4, 5))).asnumpy()
    assert numpy.argwhere(y == 0).tolist() == [[2, 3]]
    np.random.seed(3)
    sums = [npx.dropout(np.ones(200), 0.3, mode="always", cudnn_off=True).asnumpy().sum() for _ in range(2)]
    assert sums == pytest.approx([215.71431, 197.14288])
    with pytest.raises(MXNetError, match="Dropout with p=1"):
        npx.dropout(np.ones(2), 1, mode="always")


def test_layers_have_roles() -> None:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Conv2DTranspose(2, 2), nn.PReLU(), nn.Dense(3))
    net.initialize()
    net(np.ones((1, 2, 8, 8)))
    roles = {str(path): (leaf.role, leaf.axes) for path, leaf in lw.tree(net).items()}
    assert roles["0.weight"] == ("conv.weight", ("out", "in", "h", "w"))
    assert roles["1.gamma"] == ("norm.scale", ("features",))
    assert roles["1.running_var"] == ("norm.variance", ("features",))
    assert roles["2.weight"] == ("conv_transpose.weight", ("in", "out", "h", "w"))
    assert roles["3.alpha"] == ("activation.slope", ("features",))
    assert roles["4.weight"] == ("linear.weight", ("out", "in"))


def test_a_layer_can_be_copied() -> None:
    net = nn.Conv2D(4, 3)
    net.initialize()
    x = np.ones((1, 2, 8, 8))
    expected = net(x)
    assert (copy.deepcopy(net)(x) == expected).all()


def test_lambdas_take_functions_and_names() -> None:
    x = np.array([-1, 2])
    assert nn.Lambda("tanh")(x).shape == (2,)
    assert nn.HybridLambda("relu")(x).tolist() == [0, 2]
    assert nn.HybridLambda(lambda x: x + 1)(x).tolist() == [0, 3]
    assert repr(nn.HybridLambda("relu")) == "HybridLambda(relu)"
    with pytest.raises(Exception, match=r"Function name nope is not found in np/npx\."):
        nn.Lambda("nope")
    with pytest.raises(ValueError, match="Unrecognized function in lambda: 3 of type"):
        nn.Lambda(3)


def test_a_hybrid_lambda_of_version_1_gets_the_functions_of_nd(version_1: None) -> None:
    x = nd.array([-1, 2])
    assert nn.HybridLambda(lambda functions, x: functions.relu(x))(x).asnumpy().tolist() == [0, 2]
    assert nn.HybridLambda("relu")(x).asnumpy().tolist() == [0, 2]
    with pytest.raises(AssertionError, match="Function name nope is not found in ndarray"):
        nn.Lambda("nope")


def test_layers_side_by_side_are_concatenated() -> None:
    net = nn.HybridConcatenate(axis=1)
    net.add(nn.Identity(), nn.Dense(3), nn.Dense(1))
    net.initialize()
    assert net(np.ones((2, 4))).shape == (2, 8)
    other = Concurrent(axis=-1)
    other.add(nn.Identity(), nn.Identity())
    assert other(np.ones((2, 4))).shape == (2, 8)


def test_a_subclass_of_a_layer_may_override_hybrid_forward(version_1: None) -> None:
    class Standardized(nn.Conv2D):
        def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:  # noqa: N803
            weight = weight * 0 + 1
            return F.Convolution(x, weight, bias, **self._kwargs)

    layer = Standardized(1, 2)
    layer.initialize()
    assert layer(nd.ones((1, 2, 2, 2))).asnumpy().item() == 8


def test_a_sync_batch_norm_is_a_batch_norm_on_one_device() -> None:
    with pytest.warns(UserWarning, match="num_devices"):
        layer = nn.SyncBatchNorm()
    layer.initialize()
    x = np.array(_random(4, 3, 2))
    other = nn.BatchNorm()
    other.initialize()
    with autograd.record():
        numpy.testing.assert_allclose(layer(x).asnumpy(), other(x).asnumpy(), rtol=1e-6)
    assert "ndev=1" in repr(layer)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.LeakyReLU(-1), AssertionError, "must be no less than 0"),
        (lambda: nn.Conv1D(2, 3, layout="NWC"), AssertionError, "Only supports 'NCW' layout for now"),
        (lambda: nn.Conv2D(2, (3,)), AssertionError, "kernel_size must be a number or a list of 2 ints"),
        (lambda: nn.MaxPool2D(layout="X"), AssertionError, "Only NCHW and NHWC layouts are valid for 2D Pooling"),
        (
            lambda: nn.MaxPool2D()(np.ones((1, 1, 4))),
            MXNetError,
            r"Input data should be 4D .* not of shape \(1, 1, 4\)",
        ),
        (lambda: nn.Activation("foo")(np.ones(2)), MXNetError, "'foo'"),
        (lambda: nn.Activation("relu")(np.ones(2, dtype="int32")), MXNetError, "Activation of int32"),
        (lambda: nn.Dropout(0.5)(np.ones(2, dtype="int32")), MXNetError, "Dropout of int32"),
        (lambda: nn.DeformableConvolution(2), MXNetError, "DeformableConvolution; use torchvision"),
        (lambda: nn.Embedding(3, 2, sparse_grad=True), MXNetError, "sparse_grad=True"),
        (lambda: nn.Dense(3, foo=1), TypeError, "unexpected keyword argument 'foo'"),
        (lambda: nd.relu(np.ones(2)), TypeError, "as_nd_ndarray"),
        (lambda: npx.relu(nd.ones(2)), TypeError, "as_np_ndarray"),
        (lambda: npx.one_hot([1], 2), TypeError, "needs an array"),
    ],
)
def test_wrong_arguments_get_the_errors_of_mxnet(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_an_input_of_another_shape_or_dtype_names_both() -> None:
    conv, dense, norm = nn.Conv2D(3, 2), nn.Dense(3), nn.BatchNorm()
    for layer, shape in ((conv, (1, 2, 4, 4)), (dense, (2, 4)), (norm, (2, 3))):
        layer.initialize()
        layer(np.ones(shape))
    with pytest.raises(MXNetError, match=r"Provided = \[3,2,2,2\], inferred shape=\(3,3,2,2\)"):
        conv(np.ones((1, 3, 4, 4)))
    with pytest.raises(MXNetError, match=r"Provided = \[3,4\], inferred shape=\(3,5\)"):
        dense(np.ones((2, 5)))
    with pytest.raises(MXNetError, match=r"Provided = \[3\], inferred shape=\(4\)"):
        norm(np.ones((2, 4)))
    with pytest.raises(MXNetError, match="expected float64, got float32"):
        dense(np.ones((2, 4), dtype="float64"))


def test_texts_before_the_first_input_show_what_is_unknown() -> None:
    assert repr(nn.Conv2D(3, 2, in_channels=2)) == "Conv2D(-1 -> 3, kernel_size=(2, 2), stride=(1, 1))"
    assert repr(nn.Conv2DTranspose(3, 2)) == "Conv2DTranspose(-1 -> 3, kernel_size=(2, 2), stride=(1, 1))"
    assert repr(nn.LayerNorm()) == "LayerNorm(eps=1e-05, axis=-1, center=True, scale=True, in_channels=-1)"
    assert repr(nn.BatchNorm()).endswith("in_channels=-1)")


def test_texts_of_version_1_before_the_first_input(version_1: None) -> None:
    assert repr(nn.Conv2D(3, 2)) == "Conv2D(None -> 3, kernel_size=(2, 2), stride=(1, 1))"
    assert repr(nn.Conv2D(3, 2, in_channels=2)) == "Conv2D(2 -> 3, kernel_size=(2, 2), stride=(1, 1))"
    assert repr(nn.Conv2DTranspose(3, 2)) == "Conv2DTranspose(3 -> 0, kernel_size=(2, 2), stride=(1, 1))"
    assert repr(nn.LayerNorm()) == "LayerNorm(eps=1e-05, axis=-1, center=True, scale=True, in_channels=0)"
    assert repr(nn.BatchNorm()).endswith("in_channels=None)")
    assert repr(nn.GroupNorm(2)) == "GroupNorm(eps=1e-05, num_groups=2, center=True, scale=True)"


@pytest.mark.parametrize("version", [1, 2])
def test_backward_of_a_batch_norm_in_predict_mode_takes_running_statistics_for_those_of_the_batch(
    version: Any, version_1: None
) -> None:
    dialect.use_version(version)
    arrays: Any = nd if version == 1 else np
    layer = nn.BatchNorm(axis=-1)
    layer.initialize()
    x = arrays.array(numpy.random.RandomState(0).normal(size=(4, 3)), dtype="float32")
    above = arrays.array(numpy.random.RandomState(1).normal(size=(4, 3)), dtype="float32")
    x.attach_grad()
    with autograd.record(train_mode=False):
        y = layer(x)
    y.backward(above)
    # as MXNet computed it
    numpy.testing.assert_allclose(
        x.grad.asnumpy().ravel()[:4], [0.2234089, -1.0201765, 0.9317907, -2.7142584], rtol=1e-4, atol=1e-5
    )
    numpy.testing.assert_allclose(layer.gamma.grad().asnumpy()[:2], [2.0163467, 1.697213], rtol=1e-4)
    assert layer.running_mean.data().asnumpy().tolist() == [0, 0, 0]
    with autograd.record(train_mode=False):
        y = layer(x)
    y.backward(above, train_mode=False)
    numpy.testing.assert_allclose(
        x.grad.asnumpy().ravel()[:4], [1.6243373, -0.61175334, -0.52816916, -1.0729632], rtol=1e-4
    )


def test_a_batch_norm_in_training_mode_refuses_a_backward_pass_in_predict_mode() -> None:
    layer = nn.BatchNorm()
    layer.initialize()
    with autograd.record():
        y = layer(np.array(_random(4, 3)))
    with pytest.raises(MXNetError, match=r"BatchNorm in training mode with backward\(train_mode=False\)"):
        y.backward(train_mode=False)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_losses_of_np_arrays_are_means_in_float32(dtype: str, version_1: None) -> None:
    dialect.use_version(2)
    pred, label = np.ones((3, 2), dtype=dtype), np.zeros((3, 2), dtype=dtype)
    for name in ("L2Loss", "L1Loss", "HuberLoss", "HingeLoss", "SigmoidBCELoss", "KLDivLoss", "SDMLLoss"):
        assert getattr(loss, name)()(pred, label).dtype == numpy.float32
    assert loss.TripletLoss()(pred, label, label).dtype == numpy.dtype(dtype)
    assert loss.L2Loss()(torch.ones(3, 2, dtype=torch.float64), torch.ones(3, 2)).dtype == torch.float64
    dialect.use_version(1)
    assert loss.L2Loss()(nd.ones((3, 2), dtype=dtype), nd.ones((3, 2), dtype=dtype)).dtype == numpy.dtype(dtype)
