"""Products of vectors, matrices and batches of matrices."""

from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.neural_checks import one_of


def _check(name: str, lhs: Any, rhs: Any, forward_stype: str | None) -> None:
    one_of(name, "forward_stype", str(forward_stype), ("None", "default", "row_sparse", "csr"))
    if forward_stype in ("row_sparse", "csr"):
        raise refusal(f"nd.{name} with forward_stype={forward_stype!r}", "leave it out: results are dense")
    if lhs.dtype != rhs.dtype or not lhs.dtype.is_floating_point:
        raise MXNetError(
            f"nd.{name} needs two arrays of the same float dtype, not {dtype_name(lhs.dtype)} and "
            f"{dtype_name(rhs.dtype)}; use .astype()"
        )


def dot(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    transpose_a: Any = False,
    transpose_b: Any = False,
    forward_stype: str | None = None,
) -> torch.Tensor:
    """Sums over the last axis of the first array and the first axis of the second one.

    Transposing moves the first axis of `lhs` to the end, or makes the last axis of `rhs` the first.
    """
    _check("dot", lhs, rhs, forward_stype)
    if transpose_a and lhs.ndim > 1:
        lhs = lhs.movedim(0, -1)
    if transpose_b and rhs.ndim > 1:
        rhs = rhs.movedim(-1, 0)
    if lhs.shape[-1] != rhs.shape[0]:
        raise MXNetError(f"nd.dot: shapes {tuple(lhs.shape)} and {tuple(rhs.shape)} do not fit")
    result: torch.Tensor = torch.tensordot(lhs, rhs, 1)
    return result.reshape(result.shape or (1,))


def batch_dot(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    transpose_a: Any = False,
    transpose_b: Any = False,
    forward_stype: str | None = None,
) -> torch.Tensor:
    """The matrix product of each pair of a batch."""
    _check("batch_dot", lhs, rhs, forward_stype)
    if lhs.ndim < 3 or lhs.ndim != rhs.ndim:
        raise MXNetError(f"nd.batch_dot needs two batches of matrices, not {tuple(lhs.shape)} and {tuple(rhs.shape)}")
    return torch.matmul(lhs.mT if transpose_a else lhs, rhs.mT if transpose_b else rhs)


def khatri_rao(*args: torch.Tensor) -> torch.Tensor:
    """The Kronecker product of matrices, column by column."""
    if len({matrix.shape[1] for matrix in args}) > 1:
        raise MXNetError("nd.khatri_rao needs matrices with the same number of columns")
    result = args[0].detach()
    for matrix in args[1:]:
        result = torch.einsum("ik,jk->ijk", result, matrix.detach()).reshape(-1, matrix.shape[1])
    return result
