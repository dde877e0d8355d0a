"""The contract suites: tests that every home and every format must pass, for packages that extend leafwise.

A test module of yours imports all of `home_contract` or `format_contract`, and has a fixture that returns what is
tested; docs/extending.md shows both. The suites need pytest and NumPy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from leafwise.core.home import Home
from leafwise.core.registry import register, unregister

__all__ = ["Case", "FormatCase", "registered", "same_bytes", "unregister"]

with suppress(ImportError):
    import pytest

    # So that the asserts of the suites say what the values were.
    pytest.register_assert_rewrite("leafwise.testing.home_contract", "leafwise.testing.format_contract")


@contextmanager
def registered(home: Home) -> Iterator[Home]:
    """Registers a home inside the `with` block."""
    register(home)
    try:
        yield home
    finally:
        unregister(home)


class Case(NamedTuple):
    """A model for the suite of homes, with the expected facts.

    `build` makes the model. `leaves` has the path of each leaf, in order, with the further names of a tied leaf, each
    with its op: `same`, `transpose` or `view`. `parameters` is the number of elements of all parameters. `mutable` says
    whether `lw.load` returns the object that it was given, `holds_values` whether arrays have values that can be read,
    and `shared_memory` lists the paths of leaves that share memory without being tied.
    """

    build: Callable[[], Any]
    leaves: dict[str, list[tuple[str, str]]]
    parameters: int
    mutable: bool = True
    holds_values: bool = True
    shared_memory: tuple[tuple[str, ...], ...] = ()


class FormatCase(NamedTuple):
    """A format for the suite of formats: its name, as `leafwise show` prints it, and the suffix of its files. `write`
    writes NumPy arrays to a path, as the tool does whose format it is; `dtypes` are those that it accepts, and
    `has_scalars` says whether the format stores arrays without axes as such."""

    name: str
    suffix: str
    write: Callable[[Any, dict[str, Any]], None]
    dtypes: tuple[str, ...] = ("float32", "float16", "int64")
    has_scalars: bool = True


def same_bytes(first: Any, second: Any) -> bool:
    """Whether two NumPy arrays have the same dtype, shape and bytes."""
    return bool(first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes())
