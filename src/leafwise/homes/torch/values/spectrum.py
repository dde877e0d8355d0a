"""The leading singular values of matrices on a GPU, and whether matrices are orthogonal. All in double precision, since
programs may allow products in 32 bits to be rounded to 10 bits (TF32)."""

from collections.abc import Iterator

import torch

from leafwise.homes.torch.values.wide_numbers import as_doubles, row_bands


def leading_share(value: torch.Tensor, directions: torch.Tensor, rounds: int, count: int, scale: float) -> float:
    """See `Searching.leading_share`."""
    there = directions.to(value.device, torch.float64)
    for _ in range(rounds):
        there, _ = torch.linalg.qr(_gram(value, there, scale))
    projected = torch.cat([rows @ there for rows in _rows(value, scale)])
    # The eigenvalues of the small product are the squares of the singular values.
    squares = torch.linalg.eigvalsh(projected.T @ projected).flip(0)[:count].clamp(min=0)
    total = sum(rows.square().sum() for rows in _rows(value, scale))
    return float(squares.sum() / total) if total else 0.0


def orthogonality_error(value: torch.Tensor, direction: torch.Tensor, gain: float) -> float:
    """See `Searching.orthogonality_error`."""
    there = direction.to(value.device, torch.float64)
    high, wide = value.shape[0], value[0].numel()
    if wide <= high:
        product = _gram(value, there, 1.0)
    else:
        middle, at = there.new_zeros(wide, 1), 0
        for rows in _rows(value, 1.0):
            middle += rows.T @ there[at : at + len(rows)]
            at += len(rows)
        product = torch.cat([rows @ middle for rows in _rows(value, 1.0)])
    expected = there * gain**2
    return float((product - expected).norm() / (expected.norm() or 1))


def _rows(value: torch.Tensor, scale: float) -> Iterator[torch.Tensor]:
    for _, band in row_bands(value):
        yield as_doubles(band).reshape(len(band), -1) / scale


def _gram(value: torch.Tensor, directions: torch.Tensor, scale: float) -> torch.Tensor:
    """The transpose of the matrix, times the matrix, times the directions."""
    total = torch.zeros_like(directions)
    for rows in _rows(value, scale):
        total += rows.T @ (rows @ directions)
    return total
