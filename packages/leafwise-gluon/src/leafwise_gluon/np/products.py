"""Products of arrays."""

from typing import Any

from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.np.results import first_array, result, tensor_of
from leafwise_gluon.ops import arithmetic, products


def dot(a: Any, b: Any, out: Any = None) -> ndarray:
    """The product of vectors and matrices.

    >>> from leafwise_gluon import np
    >>> print(np.dot(np.array([1, 2]), np.array([3, 4])))
    11.0
    """
    return result("dot", arithmetic.dot(plain(a), plain(b)), a, out)


def matmul(a: Any, b: Any, out: Any = None) -> ndarray:
    """The matrix product, like `@`."""
    return result("matmul", arithmetic.matmul(plain(a), plain(b)), a, out)


def inner(a: Any, b: Any) -> ndarray:
    return result("inner", products.inner(plain(a), plain(b)), first_array((a, b)))


def outer(a: Any, b: Any) -> ndarray:
    return result("outer", products.outer(tensor_of(a, "outer"), tensor_of(b, "outer")), a)


def vdot(a: Any, b: Any) -> ndarray:
    return result("vdot", products.vdot(tensor_of(a, "vdot"), tensor_of(b, "vdot")), a)


def tensordot(a: Any, b: Any, axes: Any = 2) -> ndarray:
    """The sum of products along axes of both arrays."""
    return result("tensordot", products.tensordot(tensor_of(a, "tensordot"), tensor_of(b, "tensordot"), axes), a)


def einsum(subscripts: str, *operands: Any, out: Any = None, optimize: Any = False) -> ndarray:
    """A sum of products in Einstein's notation: `np.einsum('ij,jk->ik', x, y)`. `optimize` changes nothing here."""
    tensors = [tensor_of(operand, "einsum") for operand in operands]
    return result("einsum", products.einsum(subscripts, tensors), first_array(operands), out)


def kron(a: Any, b: Any) -> ndarray:
    return result("kron", products.kron(plain(a), plain(b)), first_array((a, b)))


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> ndarray:
    """The cross product of vectors."""
    axes = (axisa, axisb, axisc) if axis is None else (axis, axis, axis)
    return result("cross", products.cross(tensor_of(a, "cross"), tensor_of(b, "cross"), axes), a)
