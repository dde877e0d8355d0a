"""`autograd.Function`: a function with a gradient of the user's own."""

from collections.abc import Sequence
from typing import Any

import torch

from leafwise_gluon.arrays.autograd_state import STATE, differentiating
from leafwise_gluon.arrays.values import ArrayValues, plain, wrapped
from leafwise_gluon.base import MXNetError


class Function:
    """A function with a gradient of its own. Subclasses define `forward` and `backward`.

    >>> from leafwise_gluon import autograd, np
    >>> class Sigmoid(autograd.Function):
    ...     def forward(self, x):
    ...         y = 1 / (1 + np.exp(-x))
    ...         self.save_for_backward(y)
    ...         return y
    ...     def backward(self, dy):
    ...         (y,) = self.saved_tensors
    ...         return dy * y * (1 - y)
    >>> x = np.zeros(2)
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     y = Sigmoid()(x)
    >>> y.backward()
    >>> x.grad
    array([0.25, 0.25])
    """

    def __init__(self) -> None:
        self._used = False
        self._saved: Sequence[Any] = ()

    def save_for_backward(self, *args: Any) -> None:
        """Keeps arrays for `backward`, which finds them in `saved_tensors`."""
        self._saved = args

    @property
    def saved_tensors(self) -> Sequence[Any]:
        return self._saved

    def forward(self, *inputs: Any) -> Any:
        """Computes the result; nothing here is recorded."""
        raise NotImplementedError

    def backward(self, *output_grads: Any) -> Any:
        """Computes the gradients of the inputs from those of the outputs."""
        raise NotImplementedError

    def __call__(self, *inputs: Any) -> Any:
        assert not self._used, "Each Function instance can only be called once. Please create another instance."
        self._used = True
        is_recorded = differentiating()
        before, STATE.recording = STATE.recording, False
        try:
            outputs = self.forward(*inputs)
        finally:
            STATE.recording = before
        if not is_recorded:
            return outputs
        listed = [outputs] if isinstance(outputs, ArrayValues) else list(outputs)
        tensors = [plain(entry) for entry in inputs]
        connected = _Connection.apply(self, [plain(output).detach() for output in listed], listed, *tensors)  # type: ignore[no-untyped-call]
        arrays = [wrapped(type(old), new, old.ctx) for old, new in zip(listed, connected, strict=True)]
        return arrays[0] if isinstance(outputs, ArrayValues) else type(outputs)(arrays)


class _Connection(torch.autograd.Function):
    """Connects the outputs of a `Function` to its inputs in PyTorch's graph."""

    @staticmethod
    def forward(ctx: Any, function: Function, tensors: list[torch.Tensor], outputs: list[Any], *inputs: Any) -> Any:
        ctx.function, ctx.inputs = function, inputs
        ctx.kinds = [(type(output), output.ctx) for output in outputs]
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        arrays = [wrapped(kind, grad, context) for (kind, context), grad in zip(ctx.kinds, grads, strict=True)]
        computed = ctx.function.backward(*arrays)
        listed = [computed] if isinstance(computed, ArrayValues) else list(computed)
        name = type(ctx.function).__name__
        if len(listed) != len(ctx.inputs):
            raise MXNetError(
                f"{name}.backward must return a gradient for each input: {len(ctx.inputs)}, not {len(listed)}"
            )
        return None, None, None, *(plain(gradient) for gradient in listed)
