"""`mxnet.autograd`: whether operations are recorded, whether layers behave as in training, and gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.gradients import backward, check_grad_req, gradients
from leafwise_gluon.arrays.legacy import NDArray, wrap_legacy
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import refusal
from leafwise_gluon.custom_gradient import Function
from leafwise_gluon.names.lookup import names_of

__all__ = [
    "Function",
    "backward",
    "grad",
    "is_recording",
    "is_training",
    "mark_variables",
    "pause",
    "predict_mode",
    "record",
    "set_recording",
    "set_training",
    "train_mode",
]


@contextmanager
def _mode(recording: bool | None, training: bool | None) -> Iterator[None]:
    before = STATE.recording, STATE.training
    STATE.recording = before[0] if recording is None else recording
    STATE.training = before[1] if training is None else training
    try:
        yield
    finally:
        STATE.recording, STATE.training = before


def record(train_mode: bool = True):  # type: ignore[no-untyped-def]
    """Operations in this scope are recorded, so that they can be differentiated.

    >>> from leafwise_gluon import autograd, np
    >>> x = np.arange(4)
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     y = 2 * np.dot(x, x)
    >>> y.backward()
    >>> x.grad
    array([ 0.,  4.,  8., 12.])
    """
    return _mode(True, train_mode)


def pause(train_mode: bool = False):  # type: ignore[no-untyped-def]
    """Operations in this scope are not recorded."""
    return _mode(False, train_mode)


def train_mode():  # type: ignore[no-untyped-def]
    """Layers behave as in training."""
    return _mode(None, True)


def predict_mode():  # type: ignore[no-untyped-def]
    """Layers behave as in prediction."""
    return _mode(None, False)


def is_recording() -> bool:
    return STATE.recording


def is_training() -> bool:
    return STATE.training


def set_recording(is_recording: bool) -> bool:
    """Switches recording on or off, and returns what it was before."""
    before, STATE.recording = STATE.recording, bool(is_recording)
    return before


def set_training(train_mode: bool) -> bool:
    """Switches training mode on or off, and returns what it was before."""
    before, STATE.training = STATE.training, bool(train_mode)
    return before


def mark_variables(variables: Any, gradients: Any, grad_reqs: Any = "write") -> None:
    """Makes backward write the gradients of some arrays into other arrays."""
    if isinstance(variables, ArrayValues):
        variables, gradients = [variables], [gradients]
    reqs = [grad_reqs] * len(variables) if isinstance(grad_reqs, str) else list(grad_reqs)
    for variable, gradient, grad_req in zip(variables, gradients, reqs, strict=True):
        check_grad_req(grad_req)
        tensor: Any = variable.tensor.detach()
        tensor.requires_grad_(grad_req != "null")
        tensor.grad, tensor.grad_req = gradient.tensor.detach(), grad_req
        variable.tensor = tensor


def grad(
    heads: Any,
    variables: Any,
    head_grads: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> list[NDArray]:
    """The gradients of `heads` with respect to arrays that have `attach_grad`, as a list of `nd.NDArray`.

    With `create_graph`, the gradients can be differentiated again.

    >>> from leafwise_gluon import autograd, np
    >>> x = np.array([1, 2])
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     y = x * x
    >>> autograd.grad(y, [x])[0].asnumpy().tolist()
    [2.0, 4.0]
    """
    listed = [variables] if isinstance(variables, ArrayValues) else list(variables)
    keep = create_graph if retain_graph is None else retain_graph
    computed = gradients(heads, listed, head_grads, keep, create_graph, train_mode)
    return [wrap_legacy(tensor, variable.ctx) for tensor, variable in zip(computed, listed, strict=True)]


def get_symbol(x: Any) -> NoReturn:
    raise refusal("autograd.get_symbol", "there are no symbols; x.tensor.grad_fn is PyTorch's graph")


__getattr__ = names_of("mxnet.autograd")
