"""`mxnet.nd.contrib`: control flow, and the contributed operations that Gluon code uses."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.arrays.legacy_calls import exposed
from leafwise_gluon.arrays.values import plain, wrapped
from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.nd import neural_contrib
from leafwise_gluon.ops.legacy import contributed, elementwise

allclose, arange_like = exposed(contributed.allclose), exposed(contributed.arange_like)
boolean_mask, box_iou = exposed(contributed.boolean_mask), exposed(contributed.box_iou)
div_sqrt_dim, quadratic = exposed(contributed.div_sqrt_dim), exposed(contributed.quadratic)
gradientmultiplier = exposed(contributed.gradientmultiplier)
index_array, index_copy = exposed(contributed.index_array), exposed(contributed.index_copy)
isfinite, isinf, isnan = (exposed(f) for f in (contributed.isfinite, contributed.isinf, contributed.isnan))
round_ste, sign_ste = exposed(elementwise.round_ste), exposed(elementwise.sign_ste)


def foreach(body: Callable[..., Any], data: Any, init_states: Any) -> tuple[Any, Any]:
    """Runs `outputs, states = body(data[t], states)` along the first axis, and stacks the outputs.

    >>> from leafwise_gluon import nd
    >>> sums, last = nd.contrib.foreach(lambda x, total: (x + total, x + total), nd.arange(4), nd.zeros(1))
    >>> print(last.asscalar())
    6.0
    """
    steps = len(data if isinstance(data, NDArray) else data[0])
    states, collected, single = init_states, [], True
    for time in range(steps):
        now = data[time] if isinstance(data, NDArray) else [part[time] for part in data]
        outputs, states = body(now, states)
        single = not isinstance(outputs, list | tuple)
        _check_arrays("foreach", [outputs] if single else outputs)
        collected.append([outputs] if single else [*outputs])
    stacked = [_stacked(parts) for parts in zip(*collected, strict=True)]
    return (stacked[0] if single else stacked), states


def while_loop(
    cond: Callable[..., Any], func: Callable[..., Any], loop_vars: Any, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """Runs `outputs, loop_vars = func(*loop_vars)` while a condition holds; the outputs are padded with zeros."""
    if max_iterations is None:
        raise ValueError("max_iterations should be specified")
    single_variable = not isinstance(loop_vars, list | tuple)
    variables = [loop_vars] if single_variable else [*loop_vars]
    collected: list[list[NDArray]] = []
    single = False
    while len(collected) < max_iterations and bool(cond(*variables)):
        outputs, changed = func(*variables)
        single = isinstance(outputs, NDArray)
        outputs = [] if outputs is None else [outputs] if single else [*outputs]
        _check_arrays("while_loop", outputs)
        collected.append(outputs)
        variables = [changed] if isinstance(changed, NDArray) else [*changed]
    stacked = [_padded(_stacked(parts), max_iterations) for parts in zip(*collected, strict=True)]
    return (stacked[0] if single else stacked), (variables[0] if single_variable else variables)


def cond(pred: Any, then_func: Callable[[], Any], else_func: Callable[[], Any]) -> Any:
    """The result of one of two functions."""
    return then_func() if bool(pred) else else_func()


def _check_arrays(name: str, values: Sequence[Any]) -> None:
    for value in values:
        assert isinstance(value, NDArray), f"nd.contrib.{name}: the body must return NDArrays, not {value!r}"


def _stacked(parts: Sequence[NDArray]) -> NDArray:
    return wrapped(type(parts[0]), torch.stack([plain(part) for part in parts]), parts[0].ctx)  # type: ignore[no-any-return]


def _padded(array: NDArray, length: int) -> NDArray:
    tensor = plain(array)
    rest = tensor.new_zeros(length - tensor.shape[0], *tensor.shape[1:])
    return wrapped(type(array), torch.cat([tensor, rest]), array.ctx)  # type: ignore[no-any-return]


globals().update({name: getattr(neural_contrib, name) for name in neural_contrib.__all__})

__all__ = [
    *neural_contrib.__all__,
    "allclose",
    "arange_like",
    "boolean_mask",
    "box_iou",
    "cond",
    "div_sqrt_dim",
    "foreach",
    "gradientmultiplier",
    "index_array",
    "index_copy",
    "isfinite",
    "isinf",
    "isnan",
    "quadratic",
    "round_ste",
    "sign_ste",
    "while_loop",
]
__getattr__ = names_of("mxnet.ndarray.contrib")
