"""The neural operations under the names and with the arguments that they have in `mxnet.npx`.

Where the order of arguments changed between the versions, the operation is defined for both.
"""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.base import MXNetError
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.npx.over_arrays import over_arrays
from leafwise_gluon.ops import (
    neural_activations,
    neural_images,
    neural_linear,
    neural_norms,
    neural_picking,
    neural_pooling,
    neural_reshape,
    neural_sequences,
    neural_softmax,
)
from leafwise_gluon.ops.legacy import (
    binary,
    contributed,
    elementwise,
    products,
    reductions,
    sequences,
    shaping,
    sorting,
)
from leafwise_gluon.ops.legacy.gradients import with_zero_gradient


def _npx(operation: Callable[..., Any], name: str) -> Callable[..., Any]:
    return over_arrays(operation, ndarray, name)


# -- with other arguments than in nd -----------------------------------------------------------------------------


def _fully_connected(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    num_hidden: int | None = None,
    no_bias: bool | None = None,
    flatten: bool = True,
) -> torch.Tensor:
    """`x · weightᵀ + bias`. In 2.x, `no_bias` is true unless given; with it, a bias is ignored."""
    if is_v1():
        return neural_linear.fully_connected(x, weight, bias, num_hidden, bool(no_bias), flatten)
    assert num_hidden is not None, "Please provide number of hidden nodes"
    if no_bias is None or no_bias:
        return neural_linear.fully_connected(x, weight, None, num_hidden, True, flatten)
    assert bias is not None, "Missing bias parameter"
    return neural_linear.fully_connected(x, weight, bias, num_hidden, False, flatten)


def _deconvolution(
    data: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    kernel: Any = None,
    stride: Any = None,
    dilate: Any = None,
    pad: Any = None,
    adj: Any = None,
    target_shape: Any = None,
    num_filter: int = 1,
    num_group: int = 1,
    workspace: int = 1024,
    no_bias: bool | None = None,
    cudnn_tune: Any = None,
    cudnn_off: bool = False,
    layout: str | None = None,
) -> torch.Tensor:
    """A transposed convolution; `no_bias` is true unless given in 1.x, and false in 2.x."""
    without = is_v1() if no_bias is None else no_bias
    return neural_linear.deconvolution(
        data,
        weight,
        bias,
        kernel,
        stride,
        dilate,
        pad,
        adj,
        target_shape,
        num_filter,
        num_group,
        no_bias=without,
        layout=layout,
    )


def _pooling(
    data: torch.Tensor,
    kernel: Any = None,
    stride: Any = None,
    pad: Any = None,
    pool_type: str = "max",
    pooling_convention: str = "valid",
    global_pool: bool = False,
    cudnn_off: bool = False,
    p_value: int | None = None,
    count_include_pad: bool | None = None,
    layout: str | None = None,
) -> torch.Tensor:
    """Pools windows of the data; give everything after `kernel` by name, because 1.x has another order."""
    return neural_pooling.pooling(
        data,
        kernel,
        pool_type,
        global_pool,
        pooling_convention=pooling_convention,
        stride=stride,
        pad=pad,
        p_value=p_value,
        count_include_pad=count_include_pad,
        layout=layout,
    )


def _batch_norm(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    output_mean_var: bool = False,
    axis: int = 1,
    cudnn_off: bool = False,
    min_calib_range: Any = None,
    max_calib_range: Any = None,
    training: bool = False,
) -> Any:
    """Normalizes each channel; see `ops.neural_norms.batch_norm`."""
    return neural_norms.batch_norm(
        x,
        gamma,
        beta,
        running_mean,
        running_var,
        eps,
        momentum,
        fix_gamma,
        use_global_stats,
        output_mean_var,
        axis,
        training,
    )


def _embedding(
    data: torch.Tensor,
    weight: torch.Tensor,
    input_dim: int | None = None,
    output_dim: int | None = None,
    dtype: Any = "float32",
    sparse_grad: bool = False,
) -> torch.Tensor:
    """The rows of `weight` at the indices in `data`."""
    assert is_v1() or not sparse_grad, "Currently row sparse gradient is not supported in npx.embedding"
    return neural_picking.embedding(data, weight, input_dim, output_dim, dtype, sparse_grad)


def _log_softmax(
    data: torch.Tensor,
    axis: int = -1,
    length: torch.Tensor | None = None,
    temperature: float | None = None,
    use_length: bool = False,
    dtype: Any = None,
) -> torch.Tensor:
    """The logarithm of softmax. MXNet has no lengths here."""
    if is_v1() and length is not None:
        raise MXNetError("npx.log_softmax: Cannot find argument 'length'; mask the loss instead")
    assert use_length or length is None, "Length input is not used"
    return neural_softmax.log_softmax(data, axis, temperature, dtype, use_length)


def _softmax(
    data: torch.Tensor,
    length: torch.Tensor | None = None,
    axis: int = -1,
    temperature: float | None = None,
    use_length: bool = False,
    dtype: Any = None,
) -> torch.Tensor:
    """exp(data / temperature), divided by its sum along an axis."""
    if not is_v1():
        assert use_length or length is None, "Length input is not used"
    return neural_softmax.softmax(data, length, axis, temperature, dtype, use_length)


def _pick(
    data: torch.Tensor, index: torch.Tensor, axis: int | None = -1, mode: str = "clip", keepdims: bool = False
) -> torch.Tensor:
    """One element along an axis for each index."""
    return sorting.pick(data, index, axis, keepdims, mode)


def _one_hot(
    data: torch.Tensor, depth: int, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = "float32"
) -> torch.Tensor:
    """A new last axis with `on_value` at the index."""
    return sorting.one_hot(data, depth, on_value, off_value, dtype)


def _group_norm(
    data: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    num_groups: int = 1,
    eps: float = 1e-3,
    output_mean_var: bool = False,
) -> Any:
    """Normalizes groups of channels."""
    return neural_norms.group_norm(data, gamma, beta, num_groups, eps, output_mean_var)


def _nonzero(a: torch.Tensor) -> torch.Tensor:
    """The positions of the nonzero elements, one in each row."""
    return torch.nonzero(a.detach())


def _constraint_check(x: torch.Tensor, msg: str = "Constraint violated!") -> torch.Tensor:
    """True if all elements are true, otherwise a ValueError with the message."""
    if not bool(x.all()):
        raise ValueError(msg)
    return torch.ones((), dtype=torch.bool)


def _broadcast_greater(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """1 where the left side is greater, and 0 elsewhere."""
    return with_zero_gradient(torch.gt(lhs, rhs).to(lhs.dtype), lhs, rhs)


fully_connected = _npx(_fully_connected, "fully_connected")
deconvolution = _npx(_deconvolution, "deconvolution")
pooling = _npx(_pooling, "pooling")
batch_norm = _npx(_batch_norm, "batch_norm")
log_softmax = _npx(_log_softmax, "log_softmax")
softmax = _npx(_softmax, "softmax")
pick = _npx(_pick, "pick")
one_hot = _npx(_one_hot, "one_hot")
nonzero = _npx(_nonzero, "nonzero")
group_norm = _npx(_group_norm, "group_norm")
constraint_check = _npx(_constraint_check, "constraint_check")
broadcast_greater = _npx(_broadcast_greater, "broadcast_greater")

# -- with the same arguments -------------------------------------------------------------------------------------

convolution = _npx(neural_linear.convolution, "convolution")
activation = _npx(neural_activations.activation, "activation")
leaky_relu = _npx(neural_activations.leaky_relu, "leaky_relu")
relu = _npx(elementwise.relu, "relu")
sigmoid = _npx(elementwise.sigmoid, "sigmoid")
softsign = _npx(elementwise.softsign, "softsign")
smooth_l1 = _npx(elementwise.smooth_l1, "smooth_l1")
erf = _npx(elementwise.erf, "erf")
erfinv = _npx(elementwise.erfinv, "erfinv")
gamma = _npx(elementwise.gamma, "gamma")
gammaln = _npx(elementwise.gammaln, "gammaln")
digamma = _npx(elementwise.digamma, "digamma")
round_ste = _npx(elementwise.round_ste, "round_ste")
sign_ste = _npx(elementwise.sign_ste, "sign_ste")
stop_gradient = _npx(elementwise.stop_gradient, "stop_gradient")

masked_softmax = _npx(neural_softmax.masked_softmax, "masked_softmax")
masked_log_softmax = _npx(neural_softmax.masked_log_softmax, "masked_log_softmax")

batch_norm_with_relu = _npx(neural_norms.batch_norm_with_relu, "batch_norm_with_relu")
sync_batch_norm = _npx(neural_norms.sync_batch_norm, "sync_batch_norm")
layer_norm = _npx(neural_norms.layer_norm, "layer_norm")
instance_norm = _npx(neural_norms.instance_norm, "instance_norm")
dropout = _npx(neural_norms.dropout, "dropout")

embedding = _npx(_embedding, "embedding")
topk = _npx(sorting.topk, "topk")
gather_nd = _npx(sorting.gather_nd, "gather_nd")
index_add = _npx(neural_picking.index_add, "index_add")
index_update = _npx(neural_picking.index_update, "index_update")

add_n = _npx(binary.add_n, "add_n")
arange_like = _npx(contributed.arange_like, "arange_like")
batch_dot = _npx(products.batch_dot, "batch_dot")
batch_flatten = _npx(shaping.flatten, "batch_flatten")
broadcast_like = _npx(shaping.broadcast_like, "broadcast_like")
cast = _npx(elementwise.cast, "cast")
norm = _npx(reductions.norm, "norm")
pad = _npx(shaping.pad, "pad")
reshape = _npx(neural_reshape.reshaped, "reshape")
reshape_like = _npx(shaping.reshape_like, "reshape_like")
shape_array = _npx(elementwise.shape_array, "shape_array")
slice = _npx(shaping.crop, "slice")
slice_channel = _npx(shaping.split, "slice_channel")
slice_like = _npx(shaping.slice_like, "slice_like")

sequence_mask = _npx(sequences.SequenceMask, "sequence_mask")
sequence_last = _npx(sequences.SequenceLast, "sequence_last")
sequence_reverse = _npx(sequences.SequenceReverse, "sequence_reverse")
ctc_loss = _npx(neural_sequences.ctc_loss, "ctc_loss")
interleaved_matmul_encdec_qk = _npx(neural_sequences.cross_attention_scores, "interleaved_matmul_encdec_qk")
interleaved_matmul_encdec_valatt = _npx(neural_sequences.cross_attention_values, "interleaved_matmul_encdec_valatt")
interleaved_matmul_selfatt_qk = _npx(neural_sequences.self_attention_scores, "interleaved_matmul_selfatt_qk")
interleaved_matmul_selfatt_valatt = _npx(neural_sequences.self_attention_values, "interleaved_matmul_selfatt_valatt")

box_iou = _npx(contributed.box_iou, "box_iou")
box_nms = _npx(neural_images.box_nms, "box_nms")
multibox_prior = _npx(neural_images.multibox_prior, "multibox_prior")
roi_pooling = _npx(neural_images.roi_pooling, "roi_pooling")

__all__ = [
    "activation",
    "add_n",
    "arange_like",
    "batch_dot",
    "batch_flatten",
    "batch_norm",
    "batch_norm_with_relu",
    "box_iou",
    "box_nms",
    "broadcast_greater",
    "broadcast_like",
    "cast",
    "constraint_check",
    "convolution",
    "ctc_loss",
    "deconvolution",
    "digamma",
    "dropout",
    "embedding",
    "erf",
    "erfinv",
    "fully_connected",
    "gamma",
    "gammaln",
    "gather_nd",
    "group_norm",
    "index_add",
    "index_update",
    "instance_norm",
    "interleaved_matmul_encdec_qk",
    "interleaved_matmul_encdec_valatt",
    "interleaved_matmul_selfatt_qk",
    "interleaved_matmul_selfatt_valatt",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "masked_log_softmax",
    "masked_softmax",
    "multibox_prior",
    "nonzero",
    "norm",
    "one_hot",
    "pad",
    "pick",
    "pooling",
    "relu",
    "reshape",
    "reshape_like",
    "roi_pooling",
    "round_ste",
    "sequence_last",
    "sequence_mask",
    "sequence_reverse",
    "shape_array",
    "sigmoid",
    "sign_ste",
    "slice",
    "slice_channel",
    "slice_like",
    "smooth_l1",
    "softmax",
    "softsign",
    "stop_gradient",
    "sync_batch_norm",
    "topk",
]
