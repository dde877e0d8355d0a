"""Arrays that behave as MXNet's `np.ndarray` and are tensors all the same.

They print as NumPy's, default to float32, and are differentiated only where `autograd.record()` says so.
Whatever PyTorch does with a tensor works on them, and gives such an array again.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

from leafwise.gluon.base import MXNetError
from leafwise.gluon.state import differentiating

_GRAD_REQS = ("write", "add", "null")
_TENSOR: Any = torch.Tensor  # its own properties, beneath those that an ndarray has otherwise


class ndarray(torch.Tensor):  # noqa: N801
    """An array as `mxnet.np` has it; a tensor underneath.

    >>> from leafwise.gluon import np
    >>> x = np.array([[1, 2], [3, 4]])
    >>> print(x @ x)
    [[ 7. 10.]
     [15. 22.]]
    >>> x.shape, x.dtype
    ((2, 2), dtype('float32'))
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch.set_grad_enabled(differentiating()):
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    # -- what NumPy says otherwise than PyTorch ------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(_TENSOR.shape.__get__(self))

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        return numpy_dtype(_TENSOR.dtype.__get__(self))

    @property
    def size(self) -> Any:
        return _Size(self)

    @property
    def ctx(self) -> str:
        return str(_TENSOR.device.__get__(self))

    def __repr__(self) -> str:  # type: ignore[override]
        values = self.asnumpy()
        text = numpy.array2string(values, separator=", ", prefix="array(")
        return f"array({text})" if values.dtype.name in ("float32", "bool") else f"array({text}, dtype={values.dtype})"

    def __str__(self) -> str:
        return str(self.asnumpy())

    def __format__(self, spec: str) -> str:
        return format(self.asnumpy()[()], spec) if not self.ndim else format(str(self), spec)

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(self.shape[0]))

    def asnumpy(self) -> Any:
        """A NumPy copy."""
        return plain(self).detach().cpu().numpy().copy()

    def asscalar(self) -> Any:
        return self.item()

    def astype(self, dtype: Any, copy: bool = True) -> "ndarray":
        return wrap(plain(self).to(torch_dtype(dtype), copy=copy))

    def copy(self) -> "ndarray":
        return wrap(plain(self).clone())

    def __copy__(self) -> "ndarray":
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> "ndarray":
        copied: ndarray = memo.setdefault(id(self), wrap(plain(self).detach().clone()))
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _from_numpy, (self.asnumpy(),)

    # -- indices and reductions, as NumPy has them -----------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_index(key, self.shape))

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(value, torch.Tensor | int | float | bool):
            value = torch.as_tensor(numpy.asarray(value), dtype=_TENSOR.dtype.__get__(self))
        super().__setitem__(_index(key, self.shape), value)

    def max(self, *args: Any, **options: Any) -> Any:
        return torch.amax(self, **_as_dim(options)) if "axis" in options else super().max(*args, **options)

    def min(self, *args: Any, **options: Any) -> Any:
        return torch.amin(self, **_as_dim(options)) if "axis" in options else super().min(*args, **options)

    def var(self, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:  # type: ignore[override]
        return torch.var(self, dim=axis, correction=ddof, keepdim=keepdims)

    def std(self, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:  # type: ignore[override]
        return torch.std(self, dim=axis, correction=ddof, keepdim=keepdims)

    def transpose(self, *axes: Any) -> Any:
        if len(axes) == 2:
            return super().transpose(*axes)  # of a matrix the same, and PyTorch's own code calls it so
        order = axes[0] if len(axes) == 1 else axes
        return torch.permute(self, tuple(order) or tuple(reversed(range(self.ndim))))

    def dot(self, other: Any) -> Any:
        return dot(self, other)

    def detach(self) -> "ndarray":
        return wrap(plain(self).detach())

    def as_in_ctx(self, ctx: Any) -> "ndarray":
        return self

    as_in_context = to_device = as_in_ctx

    # -- gradients -----------------------------------------------------------------------------------

    def attach_grad(self, grad_req: str = "write") -> None:
        """Asks for the gradient with respect to this array; it is zeros before any backward."""
        check_grad_req(grad_req)
        if not self.is_leaf:
            raise MXNetError(
                "the Gluon front end cannot attach a gradient to an array that was computed under record(); "
                "write y = y.detach(); y.attach_grad()"
            )
        self.requires_grad_(grad_req != "null")
        self.grad_req = grad_req
        _TENSOR.grad.__set__(self, None)

    @property
    def grad(self) -> "ndarray | None":  # type: ignore[override]
        found = _TENSOR.grad.__get__(self)
        if found is None and self.requires_grad and self.is_leaf:
            found = torch.zeros_like(plain(self))
        return None if found is None else wrap(found)

    def backward(self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True) -> None:  # type: ignore[override]
        """Computes gradients; of an array that is no scalar, those of its sum."""
        backward([self], None if out_grad is None else [out_grad], retain_graph)


class _Size(int):
    """`x.size` is a number, as in NumPy; PyTorch's own code goes on calling it."""

    def __new__(cls, array: ndarray) -> "_Size":
        size = super().__new__(cls, array.numel())
        size.array = array  # type: ignore[attr-defined]
        return size

    def __call__(self, dim: int | None = None) -> Any:
        shape = self.array.shape  # type: ignore[attr-defined]
        return torch.Size(shape) if dim is None else shape[dim]


def plain(array: torch.Tensor) -> torch.Tensor:
    """The same tensor without the manners of an ndarray; the graph is kept, where there is one."""
    with torch._C.DisableTorchFunctionSubclass(), torch.set_grad_enabled(differentiating()):
        return array.as_subclass(torch.Tensor) if isinstance(array, ndarray) else array


def wrap(tensor: torch.Tensor) -> ndarray:
    """The same tensor with the manners of an ndarray; the graph is kept."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(ndarray)


def dot(a: Any, b: Any) -> Any:
    """The product of vectors and matrices, as NumPy has it."""
    if not (a.ndim and b.ndim):
        return a * b
    return torch.tensordot(a, b, dims=([-1], [-2 if b.ndim > 1 else -1]))


def _from_numpy(values: Any) -> ndarray:
    return wrap(torch.from_numpy(values))


def _as_dim(options: dict[str, Any]) -> dict[str, Any]:
    names = {"axis": "dim", "keepdims": "keepdim"}
    given = {names.get(name, name): value for name, value in options.items()}
    return {name: value for name, value in given.items() if value is not None}


def _index(key: Any, shape: tuple[int, ...]) -> Any:
    """An index as PyTorch takes it: slices that run backwards, and float arrays, are whole numbers there."""
    if isinstance(key, tuple):
        if any(part is Ellipsis or part is None for part in key):
            return key
        return tuple(_index(part, shape[axis:]) for axis, part in enumerate(key))
    if isinstance(key, slice) and key.step is not None and key.step < 0 and shape:
        return torch.tensor(range(*key.indices(shape[0])), dtype=torch.int64)
    if isinstance(key, ndarray) and _TENSOR.dtype.__get__(key).is_floating_point:
        return plain(key).long()
    return plain(key) if isinstance(key, ndarray) else key


def numpy_dtype(dtype: torch.dtype) -> Any:
    if dtype is torch.bfloat16:
        import ml_dtypes

        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(str(dtype).removeprefix("torch."))


def torch_dtype(dtype: Any) -> torch.dtype:
    """A dtype as PyTorch has it, from a name, a NumPy type or a torch.dtype; float32 for None."""
    if dtype is None:
        return torch.float32
    if isinstance(dtype, torch.dtype):
        return dtype
    name = dtype if isinstance(dtype, str) else numpy.dtype(dtype).name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise MXNetError(f"unknown dtype {dtype!r}")
    return found


def check_grad_req(grad_req: str) -> None:
    assert grad_req in _GRAD_REQS, f"grad_req must be one of 'write', 'add', or 'null', but got '{grad_req}'"


def backward(heads: Iterable[torch.Tensor], head_grads: Any = None, retain_graph: bool = False) -> None:
    """Backward from arrays. A gradient is overwritten, unless its `grad_req` is 'add'."""
    with torch._C.DisableTorchFunctionSubclass():
        tensors = [head.as_subclass(torch.Tensor) for head in heads]
    if not all(tensor.requires_grad for tensor in tensors):
        raise MXNetError(
            "Cannot differentiate node because it is not in a computational graph. You need to use autograd.record() "
            "to save computational graphs for backward. If you want to differentiate the same graph twice, you need "
            "to pass retain_graph=True to backward."
        )
    grads = [None] * len(tensors) if head_grads is None else list(head_grads)
    ones = [torch.ones_like(t) if g is None else plain(g) for t, g in zip(tensors, grads, strict=True)]
    for leaf in _leaves_of(tensors):
        if getattr(leaf, "grad_req", "add") == "write":
            _TENSOR.grad.__set__(leaf, None)
    torch.autograd.backward(tensors, ones, retain_graph=retain_graph)


def _leaves_of(tensors: list[torch.Tensor]) -> list[Any]:
    """The tensors whose gradients a backward from here would add to."""
    found, seen = [], set()
    stack = [tensor.grad_fn for tensor in tensors]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        stack.extend(following for following, _ in node.next_functions)
    return found
