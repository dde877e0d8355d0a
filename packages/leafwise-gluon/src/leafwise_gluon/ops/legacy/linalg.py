"""`nd.linalg`: linear algebra of matrices and batches of matrices."""

from typing import Any

import torch

from leafwise_gluon.base import MXNetError
from leafwise_gluon.modes import is_np_shape
from leafwise_gluon.ops.legacy.elementwise import check_float


def _checked(name: str, *matrices: torch.Tensor, square: bool = False) -> None:
    for matrix in matrices:
        check_float(f"linalg.{name}", matrix)
        if matrix.ndim < 2:
            raise MXNetError(f"nd.linalg.{name} needs matrices, not an array of dimension {matrix.ndim}")
        if square and matrix.shape[-1] != matrix.shape[-2]:
            raise MXNetError(f"nd.linalg.{name} needs square matrices, not {tuple(matrix.shape)}")


def _turned(matrix: torch.Tensor, transpose: Any) -> torch.Tensor:
    return matrix.mT if transpose else matrix


def _triangle(matrix: torch.Tensor, lower: Any) -> torch.Tensor:
    return torch.tril(matrix) if lower else torch.triu(matrix)


def _per_matrix(result: torch.Tensor) -> torch.Tensor:
    """The shape of one number for a single matrix depends on shape mode."""
    return result if result.ndim or is_np_shape() else result.reshape(1)


def _with_rows_at(axis: int, *matrices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(matrix.movedim(axis, -2) for matrix in matrices)


def gemm(
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    transpose_a: Any = False,
    transpose_b: Any = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    axis: int = -2,
) -> torch.Tensor:
    """`alpha * A @ B + beta * C`."""
    _checked("gemm", A, B, C)
    A, B, C = _with_rows_at(axis, A, B, C)  # noqa: N806
    product = alpha * (_turned(A, transpose_a) @ _turned(B, transpose_b))
    if product.shape != C.shape:
        raise MXNetError(f"nd.linalg.gemm: the product has shape {tuple(product.shape)}, and C {tuple(C.shape)}")
    return (product + beta * C).movedim(-2, axis)


def gemm2(
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    transpose_a: Any = False,
    transpose_b: Any = False,
    alpha: float = 1.0,
    axis: int = -2,
) -> torch.Tensor:
    """`alpha * A @ B`."""
    _checked("gemm2", A, B)
    A, B = _with_rows_at(axis, A, B)  # noqa: N806
    if A.shape[:-2] != B.shape[:-2]:
        raise MXNetError(f"nd.linalg.gemm2: batches of shape {tuple(A.shape)} and {tuple(B.shape)} do not fit")
    return (alpha * (_turned(A, transpose_a) @ _turned(B, transpose_b))).movedim(-2, axis)


def syrk(A: torch.Tensor, transpose: Any = False, alpha: float = 1.0) -> torch.Tensor:  # noqa: N803
    """`alpha * A @ A.T`, or `alpha * A.T @ A`."""
    _checked("syrk", A)
    return alpha * (A.mT @ A if transpose else A @ A.mT)


def potrf(A: torch.Tensor, lower: Any = True) -> torch.Tensor:  # noqa: N803
    """The Cholesky factor of a symmetric positive definite matrix."""
    _checked("potrf", A, square=True)
    factor: torch.Tensor = torch.linalg.cholesky(A, upper=not lower)
    return factor


def potri(A: torch.Tensor, lower: Any = True) -> torch.Tensor:  # noqa: N803
    """The inverse of a matrix from its Cholesky factor."""
    _checked("potri", A, square=True)
    return torch.cholesky_inverse(_triangle(A, lower), upper=not lower)


def trmm(
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    transpose: Any = False,
    rightside: Any = False,
    lower: Any = True,
    alpha: float = 1.0,
) -> torch.Tensor:
    """The product with a triangular matrix."""
    _checked("trmm", A, B)
    factor = _turned(_triangle(A, lower), transpose)
    return alpha * (B @ factor if rightside else factor @ B)


def trsm(
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    transpose: Any = False,
    rightside: Any = False,
    lower: Any = True,
    alpha: float = 1.0,
) -> torch.Tensor:
    """The solution of a system of equations with a triangular matrix."""
    _checked("trsm", A, B)
    factor = _turned(_triangle(A, lower), transpose)
    upper = bool(lower) == bool(transpose)
    solution: torch.Tensor = torch.linalg.solve_triangular(factor, alpha * B, upper=upper, left=not rightside)
    return solution


def sumlogdiag(A: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """The sum of the logarithms of the diagonal."""
    _checked("sumlogdiag", A, square=True)
    result = torch.log(torch.diagonal(A, 0, -2, -1)).sum(-1)
    return result.reshape(result.shape or (1,))


def extractdiag(A: torch.Tensor, offset: int = 0) -> torch.Tensor:  # noqa: N803
    _checked("extractdiag", A, square=True)
    return torch.diagonal(A, offset, -2, -1).clone()


def makediag(A: torch.Tensor, offset: int = 0) -> torch.Tensor:  # noqa: N803
    """A matrix with a vector on a diagonal."""
    return torch.diag_embed(A, offset)


def _trian_positions(size: int, offset: int, lower: Any) -> torch.Tensor:
    is_lower = lower if offset == 0 else offset < 0
    make = torch.tril_indices if is_lower else torch.triu_indices
    return make(size, size, offset)


def extracttrian(A: torch.Tensor, offset: int = 0, lower: Any = True) -> torch.Tensor:  # noqa: N803
    """The elements of a triangle, row by row."""
    _checked("extracttrian", A, square=True)
    rows, columns = _trian_positions(A.shape[-1], offset, lower)
    return A[..., rows, columns]


def maketrian(A: torch.Tensor, offset: int = 0, lower: Any = True) -> torch.Tensor:  # noqa: N803
    """A matrix with a triangle filled row by row."""
    count = A.shape[-1]
    size = abs(offset)
    while (size - abs(offset)) * (size - abs(offset) + 1) // 2 < count:
        size += 1
    rows, columns = _trian_positions(size, offset, lower)
    if len(rows) != count:
        raise MXNetError(f"nd.linalg.maketrian: {count} elements do not fill a triangle")
    result = A.new_zeros(*A.shape[:-1], size, size)
    positions = rows * size + columns
    return result.reshape(*A.shape[:-1], -1).index_copy(-1, positions, A).reshape(result.shape)


def inverse(A: torch.Tensor) -> torch.Tensor:  # noqa: N803
    _checked("inverse", A, square=True)
    result: torch.Tensor = torch.linalg.inv(A)
    return result


def det(A: torch.Tensor) -> torch.Tensor:  # noqa: N803
    _checked("det", A, square=True)
    return _per_matrix(torch.linalg.det(A))


def slogdet(A: torch.Tensor) -> list[torch.Tensor]:  # noqa: N803
    """The sign and the logarithm of the absolute value of the determinant."""
    _checked("slogdet", A, square=True)
    sign, logarithm = torch.linalg.slogdet(A)
    return [_per_matrix(sign), _per_matrix(logarithm)]
