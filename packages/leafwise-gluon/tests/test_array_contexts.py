"""Arrays know the context they were made in, and results have the context of what they were computed from."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from leafwise_gluon import dialect, np
from leafwise_gluon.context import Context, cpu, cpu_pinned

KEEP: dict[str, Callable[[Any], Any]] = {
    "operator": lambda x: x + 1,
    "reflected operator": lambda x: 1 + x,
    "the first of two": lambda x: x + np.ones(2),
    "function": np.exp,
    "reduction": lambda x: x.sum(),
    "index": lambda x: x[0],
    "indices": lambda x: x[[0]],
    "join": lambda x: np.concatenate([x, x]),
    "parts": lambda x: np.split(x, 2)[0],
    "like": np.zeros_like,
    "choice": lambda x: np.where(x > 0, x, x),
    "positions": lambda x: x.nonzero()[0],
    "cast": lambda x: x.astype("int32"),
    "copy": lambda x: x.copy(),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "norm": np.linalg.norm,
    "detached": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", KEEP)
def test_results_are_in_the_context_of_the_array(name: str) -> None:
    expected = cpu(0) if name == "pickle" else cpu(1)
    assert KEEP[name](np.ones(2, ctx=cpu(1))).ctx == expected


def test_some_copies_are_in_the_current_context() -> None:
    x = np.ones(2, ctx=cpu(1))
    for again in (np.array(x), copy.deepcopy(x), np.cumprod(x)):
        assert again.ctx == cpu(0)
    with cpu(2):
        assert np.array(x).ctx == np.ones(2).ctx == np.arange(3).ctx == cpu(2)


def test_arrays_move_between_contexts() -> None:
    x = np.ones(2, ctx=cpu(1))
    assert x.as_in_ctx(cpu(1)) is x
    assert x.as_in_ctx(cpu(0)).ctx == cpu(0)
    moved = x.copyto(cpu(2))
    moved[:] = 5
    assert (moved.ctx, x.tolist()) == (cpu(2), [1, 1])
    x.attach_grad()
    assert x.grad.ctx == x.device == cpu(1)


def test_a_context_other_than_a_cpu_is_printed() -> None:
    assert repr(np.ones(2, ctx=cpu(1))) == "array([1., 1.])"
    x = np.ones(2, dtype="int32", ctx=cpu_pinned())
    assert repr(x) == "array([1, 1], dtype=int32, device=cpu_pinned(0))"
    assert (str(x), str(x[0])) == ("[1 1] @cpu_pinned(0)", "1")
    dialect.use_version(1)
    try:
        assert repr(x) == "array([1, 1], dtype=int32, ctx=cpu_pinned(0))"
    finally:
        dialect.use_version(2)
    assert x.ctx == Context("cpu_pinned", 0)
