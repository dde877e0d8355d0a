"""`mxnet.np.linalg`."""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.np import products, reducing, shapes
from leafwise_gluon.np.by_numpy import by_numpy
from leafwise_gluon.np.results import result, tensor_of
from leafwise_gluon.ops.norms import matrix_norm_of, norm_of, vector_norm_of
from leafwise_gluon.ops.products import floating, square, without_gradient
from leafwise_gluon.ops.reductions import check_gradient

__all__ = ["cholesky", "det", "eigh", "inv", "norm", "qr", "slogdet", "solve", "svd"]

cross, outer, tensordot = products.cross, products.outer, products.tensordot
diagonal, trace = shapes.diagonal, reducing.trace


def _computed(name: str, function: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> Any:
    try:
        return function(*tensors, **options)
    except (RuntimeError, IndexError) as error:
        raise MXNetError(f"np.linalg.{name}: {error}") from error


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> ndarray:
    """The norm of a matrix or vector, or of those along axes."""
    return result("linalg.norm", norm_of(tensor_of(x, "linalg.norm"), ord, axis, keepdims), x)


def vector_norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> ndarray:
    tensor = floating("vector_norm", tensor_of(x, "linalg.vector_norm"))
    return result("linalg.vector_norm", vector_norm_of(tensor, 2 if ord is None else ord, axis, keepdims), x)


def matrix_norm(x: Any, ord: Any = "fro", axis: Any = (-2, -1), keepdims: bool = False) -> ndarray:
    tensor = floating("matrix_norm", tensor_of(x, "linalg.matrix_norm"))
    return result("linalg.matrix_norm", matrix_norm_of(tensor, ord, axis, keepdims), x)


def matrix_transpose(a: Any) -> ndarray:
    """Each matrix transposed."""
    return shapes.swapaxes(a, -1, -2)


def vecdot(a: Any, b: Any, axis: int | None = None) -> ndarray:
    """The product of vectors along an axis."""
    tensors = [tensor_of(side, "linalg.vecdot") for side in (a, b)]
    return result("linalg.vecdot", (tensors[0] * tensors[1]).sum(-1 if axis is None else axis), a)


def det(a: Any) -> ndarray:
    return result("linalg.det", _computed("det", torch.linalg.det, square("det", tensor_of(a, "linalg.det"))), a)


def slogdet(a: Any) -> Any:
    """The sign and the logarithm of the determinant."""
    computed = _computed("slogdet", torch.linalg.slogdet, square("slogdet", tensor_of(a, "linalg.slogdet")))
    pair = [result("linalg.slogdet", part, a) for part in computed]
    return pair if is_v1() else tuple(pair)


def inv(a: Any) -> ndarray:
    return result("linalg.inv", _computed("inv", torch.linalg.inv, square("inv", tensor_of(a, "linalg.inv"))), a)


def solve(a: Any, b: Any) -> ndarray:
    """The solution `x` of `a @ x = b`."""
    left, right = square("solve", tensor_of(a, "linalg.solve")), floating("solve", tensor_of(b, "linalg.solve"))
    if right.ndim < left.ndim and (left.requires_grad or right.requires_grad):
        raise MXNetError("np.linalg.solve with a vector has no gradient; use b.reshape(-1, 1)")
    return result("linalg.solve", _computed("solve", torch.linalg.solve, left, right), a)


def cholesky(a: Any, upper: bool = False) -> ndarray:
    """The triangular factor of a positive definite matrix."""
    tensor = square("cholesky", tensor_of(a, "linalg.cholesky"))
    if upper and tensor.requires_grad:
        raise refusal("the gradient of np.linalg.cholesky with upper=True", "use the lower factor and transpose it")
    return result("linalg.cholesky", _computed("cholesky", torch.linalg.cholesky, tensor, upper=upper), a)


def qr(a: Any, mode: str = "reduced") -> tuple[ndarray, ndarray]:
    """An orthogonal and a triangular factor."""
    if mode != "reduced":
        raise NotImplementedError("np.linalg.qr supports mode='reduced' only")
    q, r = _computed("qr", torch.linalg.qr, floating("qr", tensor_of(a, "linalg.qr")))
    return result("linalg.qr", q, a), result("linalg.qr", r, a)


def svd(a: Any) -> tuple[ndarray, ndarray, ndarray]:
    """The singular value decomposition `a = u @ diag(s) @ v`; `v` has no more rows than there are singular values."""
    u, s, v = _computed("svd", torch.linalg.svd, floating("svd", tensor_of(a, "linalg.svd")), full_matrices=False)
    return result("linalg.svd", u, a), result("linalg.svd", s, a), result("linalg.svd", v, a)


def svdvals(a: Any) -> ndarray:
    return svd(a)[1]


def _eigen(name: str, a: Any) -> torch.Tensor:
    tensor = square(name, tensor_of(a, f"linalg.{name}"))
    check_gradient(f"np.linalg.{name}", tensor)
    return tensor


def eigh(a: Any, upper: bool = False) -> tuple[ndarray, ndarray]:
    """Eigenvalues and eigenvectors of a symmetric matrix; the sign of each vector is arbitrary."""
    values, vectors = _computed("eigh", torch.linalg.eigh, _eigen("eigh", a), UPLO="U" if upper else "L")
    return result("linalg.eigh", values, a), result("linalg.eigh", vectors, a)


def eigvalsh(a: Any, upper: bool = False) -> ndarray:
    values = _computed("eigvalsh", torch.linalg.eigvalsh, _eigen("eigvalsh", a), UPLO="U" if upper else "L")
    return result("linalg.eigvalsh", values, a)


def _real(name: str, computed: torch.Tensor) -> torch.Tensor:
    if bool((computed.imag != 0).any()):
        raise refusal(f"np.linalg.{name} with complex results", "use numpy.linalg on x.asnumpy()")
    return computed.real.contiguous()


def eig(a: Any) -> tuple[ndarray, ndarray]:
    values, vectors = _computed("eig", torch.linalg.eig, _eigen("eig", a))
    return result("linalg.eig", _real("eig", values), a), result("linalg.eig", _real("eig", vectors), a)


def eigvals(a: Any) -> ndarray:
    values = _computed("eigvals", torch.linalg.eigvals, _eigen("eigvals", a))
    return result("linalg.eigvals", _real("eigvals", values), a)


def pinv(a: Any, rtol: Any = None, hermitian: bool = False, rcond: Any = None) -> ndarray:
    """The pseudo-inverse."""
    if hermitian:
        raise NotImplementedError("hermitian is not supported yet...")
    tensor = floating("pinv", tensor_of(a, "linalg.pinv"))
    check_gradient("np.linalg.pinv", tensor)
    given = rtol if rtol is not None else rcond if rcond is not None else 1e-15
    computed = _computed("pinv", torch.linalg.pinv, tensor, rtol=given)
    return result("linalg.pinv", computed, a)


def matrix_rank(M: Any, rtol: Any = None, hermitian: bool = False) -> Any:  # noqa: N803
    tensor = without_gradient("matrix_rank", floating("matrix_rank", tensor_of(M, "linalg.matrix_rank")))
    rank = _computed("matrix_rank", torch.linalg.matrix_rank, tensor, rtol=rtol, hermitian=hermitian)
    return numpy.int64(rank) if is_v1() and not rank.ndim else result("linalg.matrix_rank", rank, M)


def lstsq(a: Any, b: Any, rcond: Any = "warn") -> tuple[Any, ...]:
    """The least squares solution of `a @ x = b`: the solution, residuals, rank and singular values."""
    tensors = [floating("lstsq", tensor_of(side, "linalg.lstsq")) for side in (a, b)]
    for tensor in tensors:
        check_gradient("np.linalg.lstsq", tensor)
    limit = None if rcond in (None, "warn") else rcond
    left, right = (tensor.cpu().numpy() for tensor in tensors)
    x, residuals, rank, values = numpy.linalg.lstsq(left, right, limit)
    parts = [result("linalg.lstsq", torch.from_numpy(numpy.asarray(part)), a) for part in (x, residuals, values)]
    return parts[0], parts[1], rank, parts[2]


def tensorinv(a: Any, ind: int = 2) -> ndarray:
    computed = _computed(
        "tensorinv", torch.linalg.tensorinv, floating("tensorinv", tensor_of(a, "linalg.tensorinv")), ind=ind
    )
    return result("linalg.tensorinv", computed, a)


def tensorsolve(a: Any, b: Any, axes: Any = None) -> ndarray:
    tensors = [floating("tensorsolve", tensor_of(side, "linalg.tensorsolve")) for side in (a, b)]
    return result("linalg.tensorsolve", _computed("tensorsolve", torch.linalg.tensorsolve, *tensors, dims=axes), a)


def matrix_power(a: Any, n: int) -> Any:
    return by_numpy("linalg.matrix_power", numpy.linalg.matrix_power, a, n)


def multi_dot(arrays: Any) -> Any:
    return by_numpy("linalg.multi_dot", numpy.linalg.multi_dot, arrays)


def cond(x: Any, p: Any = None) -> Any:
    return by_numpy("linalg.cond", numpy.linalg.cond, x, p)
