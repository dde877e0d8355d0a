"""Arrays with gradients: what `attach_grad`, `backward` and `detach` mean in MXNet."""

from typing import Any, Self

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.gradients import backward, check_grad_req, forget_gradient, keep_gradient, kept_gradient
from leafwise_gluon.arrays.released import is_released
from leafwise_gluon.arrays.through_torch import through_torch
from leafwise_gluon.arrays.values import ArrayValues, wrapped
from leafwise_gluon.base import refusal


class DifferentiableArray(ArrayValues):
    """The gradients of an array. Subclasses add the methods that compute new arrays."""

    __slots__ = ()
    __hash__ = object.__hash__  # MXNet's arrays of `np` cannot be hashed, those of `nd` can

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return through_torch(func, *args, **(kwargs or {}))

    def _like(self, tensor: torch.Tensor) -> Self:
        """An array of the same class and context over a tensor."""
        return wrapped(type(self), tensor, self.own_context)  # type: ignore[no-any-return]

    def detach(self) -> Self:
        """An array over the same memory, detached from the computational graph."""
        return self._like(self.tensor.detach())

    def attach_grad(self, grad_req: str = "write", stype: Any = None) -> None:
        """Makes backward compute the gradient with respect to this array; until then the gradient is zeros.

        An array that was computed under `record()` is cut off from what it was computed from in MXNet 1.x; in 2.x it
        stays connected, and gets its gradient, too.
        """
        check_grad_req(grad_req)
        if stype not in (None, "default"):
            raise refusal(
                f"ndarray.attach_grad with stype={stype!r}", "leave it out; sparse gradients are not supported"
            )
        if not self.tensor.dtype.is_floating_point and grad_req != "null":
            raise refusal(f"ndarray.attach_grad of {self.dtype}", "use .astype('float32') first")
        if self.tensor.is_leaf or dialect.is_v1() or grad_req == "null" or is_released(self.tensor):
            self.tensor = self.tensor.detach()
            self.tensor.requires_grad_(grad_req != "null")
            self.tensor.grad = torch.zeros_like(self.tensor, requires_grad=False)
        else:
            keep_gradient(self.tensor, grad_req)
        self.tensor.grad_req = grad_req  # type: ignore[attr-defined]

    def drop_grad(self) -> None:
        """Undoes `attach_grad`. An array that was computed under `record()` stays connected."""
        if self.tensor.is_leaf:
            self.tensor = self.tensor.detach()
        else:
            forget_gradient(self.tensor)

    @property
    def grad(self) -> Self | None:
        """The gradient; zeros before any backward, None without `attach_grad`."""
        tensor = self.tensor
        if not hasattr(tensor, "grad_req"):
            return None
        if not tensor.is_leaf:
            return self._like(kept_gradient(tensor))
        if tensor.grad is None and tensor.requires_grad:
            tensor.grad = torch.zeros_like(tensor, requires_grad=False)
        return None if tensor.grad is None else self._like(tensor.grad)

    @property
    def _fresh_grad(self) -> bool:
        """Whether backward has written the gradient since this was last set to False."""
        return getattr(self.tensor, "is_fresh", False)

    @_fresh_grad.setter
    def _fresh_grad(self, is_fresh: bool) -> None:
        self.tensor.is_fresh = bool(is_fresh)  # type: ignore[attr-defined]

    def backward(self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True) -> None:
        """Computes the gradients of the array; if it has several elements, of their sum."""
        backward([self], None if out_grad is None else [out_grad], retain_graph, train_mode)
