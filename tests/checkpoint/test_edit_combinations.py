"""Random edits, compared with a simple model of them in torch."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.long import short_or_long

import leafwise as lw

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64]
NAMES = ["a.weight", "a.bias", "b.0.weight", "b.1.weight", "b.1.bias", "c"]


@st.composite
def edits(draw: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A state dict, perhaps with ties, and options for it."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    state: dict[str, torch.Tensor] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True)):
        if state and draw(st.booleans()) and draw(st.booleans()):
            state[name] = state[draw(st.sampled_from(list(state)))]  # tied
            continue
        shape = draw(st.lists(st.integers(1, 6), min_size=0, max_size=3))
        state[name] = (torch.randn(shape) * 50).to(draw(st.sampled_from(DTYPES)))
    options: dict[str, Any] = {}
    some = st.lists(st.sampled_from(list(state)), max_size=2, unique=True)
    if drop := draw(some)[: len(state) - 1]:
        options["drop"] = drop
    left = [name for name in state if name not in drop]
    some = st.lists(st.sampled_from(left), max_size=2, unique=True)
    leaves = {name: next(other for other in left if state[other] is state[name]) for name in left}
    if turned := [name for name in draw(some) if state[name].ndim == 2]:
        options["transpose"] = turned[:1]
    resized = [name for name in draw(some) if state[name].ndim]
    if resized:
        options["resize"] = {resized[0]: {"size": draw(st.integers(7, 9)), "axis": -1, "fill": 3}}
    if draw(st.booleans()):
        floats = [name for name in left if state[name].is_floating_point()]
        options["cast"] = {"**": "float32", floats[0]: "bfloat16"} if floats and draw(st.booleans()) else "float32"
    untied = [name for name in draw(some) if sum(leaf == leaves[name] for leaf in leaves.values()) > 1]
    if untied:
        options["untie"] = untied
    if draw(st.booleans()):
        options["rename"] = {name: f"new.{name}" for name in draw(some)} or None
    return state, {key: value for key, value in options.items() if value}


def expected(state: dict[str, torch.Tensor], options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the edit must give: an option for a leaf changes it under all names that are tied to it."""
    left = {name: value for name, value in state.items() if name not in options.get("drop", ())}
    alone = set(options.get("untie", ()))

    def touched(names: Any) -> set[str]:
        return {
            name
            for name in left
            if any(name == other or (left[name] is left[other] and not {name, other} & alone) for other in names)
        }

    values = dict(left)
    for name in touched(options.get("transpose", ())):
        values[name] = values[name].T
    for query, resize in options.get("resize", {}).items():
        for name in touched([query]):
            value = values[name]
            more = torch.full((*value.shape[:-1], resize["size"] - value.shape[-1]), resize["fill"]).to(value.dtype)
            values[name] = torch.cat([value, more], -1)
    casts = options.get("cast") or {}
    dtypes: dict[str, str] = {}  # the last query that matches counts, and each value is rounded once
    for query, dtype in (casts if isinstance(casts, dict) else {"**": casts}).items():
        dtypes |= dict.fromkeys(left if query == "**" else touched([query]), dtype)
    for name, dtype in dtypes.items():
        if left[name].is_floating_point():
            values[name] = values[name].to(getattr(torch, dtype))
    renames = options.get("rename") or {}
    return {renames.get(name, name): value for name, value in values.items()}


def tensor(leaf: lw.Leaf) -> torch.Tensor:
    values = bytearray(leaf.numpy().tobytes())
    return torch.frombuffer(values, dtype=getattr(torch, leaf.dtype)).reshape(leaf.shape or ())


@pytest.mark.slow
@settings(max_examples=short_or_long(40, 150), deadline=None)
@given(edits())
def test_random_edits_give_what_torch_gives(case: tuple[dict[str, torch.Tensor], dict[str, Any]]) -> None:
    state, options = case
    with TemporaryDirectory() as folder:
        path, out = Path(folder) / "a.pt", Path(folder) / "b.safetensors"
        torch.save(state, path)
        lw.edit(path, out, **options)
        with lw.open(out) as t:
            written = {str(path): tensor(t[path]) for leaf in t for path in leaf.paths}
            assert lw.verify(out).unchecked == 0
    wanted = expected(state, options)
    assert written.keys() == wanted.keys()
    for name, value in wanted.items():
        assert written[name].dtype == value.dtype, name
        assert torch.equal(written[name], value), name
