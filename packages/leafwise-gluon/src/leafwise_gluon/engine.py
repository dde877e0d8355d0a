"""`mxnet.engine`: how many operations MXNet puts together before it runs them. PyTorch runs each at once."""

from collections.abc import Iterator
from contextlib import contextmanager


class _Bulk:
    size = 0


def set_bulk_size(size: int) -> int:
    """Remembers a size, which has no effect, and returns the one before."""
    before, _Bulk.size = _Bulk.size, size
    return before


@contextmanager
def bulk(size: int) -> Iterator[None]:
    """A scope with another size, which has no effect."""
    before = set_bulk_size(size)
    try:
        yield
    finally:
        set_bulk_size(before)
