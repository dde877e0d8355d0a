"""With `rename="auto"`, every leaf gets the right values, or the load is refused."""

import re
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from tests.long import short_or_long
from torch import nn

import leafwise as lw

Shapes = dict[str, tuple[int, ...]]
STEPS = [
    "encoder",
    "decoder",
    "attn",
    "mlp",
    "q",
    "k",
    "v",
    "o",
    "fc1",
    "fc2",
    "norm1",
    "norm2",
    "left",
    "right",
    "proj",
]
FRESH = [
    "alpha",
    "beta",
    "gamma",
    "w0",
    "w1",
    "w2",
    "w3",
    "n0",
    "n1",
    "n2",
    "tower_a",
    "tower_b",
    "stage",
    "main",
    "aux",
]
SHAPES = [(4, 4), (4, 8), (8, 4), (3, 4)]


@st.composite
def models(draw: Any, depth: int = 3) -> Shapes:
    """Names of parameters and their shapes, many of which are equal."""
    found: Shapes = {}
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4, unique=True)):
        if depth and draw(st.booleans()):
            inner = draw(models(depth - 1))
            first = draw(st.sampled_from([None, None, 0, 1]))
            fronts = [step] if first is None else [f"{step}.{number}" for number in range(first, first + 2)]
            found |= {f"{front}.{name}": shape for front in fronts for name, shape in inner.items()}
        else:
            shape = draw(st.sampled_from(SHAPES))
            found[f"{step}.weight"] = shape
            if draw(st.booleans()):
                found[f"{step}.bias"] = shape[:1]
    return found


@st.composite
def renamings(draw: Any) -> tuple[Shapes, dict[str, str]]:
    """A model, and a mapping of its names to those in a checkpoint: with a prefix, an inserted entry, some entries
    replaced throughout, and in another order."""
    model = draw(models())
    changed = draw(st.dictionaries(st.sampled_from(STEPS), st.sampled_from(FRESH), max_size=8))
    if len(set(changed.values())) < len(changed):
        changed = {}
    front = draw(st.sampled_from(["", "module.", "model.", "net.backbone.", "a."]))
    wrapped = draw(st.sampled_from([None, *STEPS]))

    def rename(name: str) -> str:
        steps = [[changed.get(step, step), *(["base_layer"] * (step == wrapped))] for step in name.split(".")]
        return front + ".".join(step for some in steps for step in some)

    names = draw(st.permutations(list(model)))
    return model, {name: rename(name) for name in names}


def built(shapes: Shapes) -> nn.Module:
    """A model with parameters of these names, each with a different value."""
    root, numbers = nn.Module(), count(1)
    for name, shape in shapes.items():
        *steps, last = name.split(".")
        module = root
        for step in steps:
            if step not in module._modules:
                module.add_module(step, nn.Module())
            module = module._modules[step]
        module.register_parameter(last, nn.Parameter(torch.full(shape, float(next(numbers)))))
    return root


def loaded(shapes: Shapes, source: dict[str, torch.Tensor], plan: Any) -> dict[str, torch.Tensor]:
    """A model of zeros after a load that allows leaves to be missing or unexpected."""
    model = built(shapes)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    lw.load(model, source, rename="auto", allow=() if plan.holds else {"missing", "unexpected"})
    return model.state_dict()


@pytest.mark.slow
@settings(max_examples=short_or_long(60, 300), deadline=None)
@given(renamings())
def test_what_is_filled_has_its_own_values(renaming: Any) -> None:
    shapes, old = renaming
    values = built(shapes).state_dict()
    source = {old[name]: values[name] for name in old}
    plan = lw.plan(built(shapes), source, rename="auto")
    for proposal in (*plan.applied, *plan.proposals):
        for one, other in proposal.pairs:
            assert re.sub(proposal.pattern, proposal.replacement, one) == other
    assert plan.holds == (not plan.missing)
    assert {new for proposal in plan.proposals for _, new in proposal.pairs} <= set(plan.missing)
    if not plan.feeds:
        return
    for name, value in loaded(shapes, source, plan).items():
        wanted = torch.zeros_like(value) if name in plan.missing else values[name]
        assert torch.equal(value, wanted), name


def test_keys_and_values_are_not_swapped_because_their_shapes_would_fit() -> None:
    """Also where the names share another of the words that exclude one another: here q is in both."""
    shapes = {"q.k.weight": (4, 4), "q.v.weight": (4, 8), "q.dense.weight": (4, 4), "dense.weight": (4, 4)}
    source = {f"net.backbone.{name}": value for name, value in built(shapes).state_dict().items()}
    names = "net.backbone.q.k.weight", "net.backbone.q.v.weight"
    source[names[0]], source[names[1]] = source[names[1]], source[names[0]]
    plan = lw.plan(built(shapes), source, rename="auto")
    assert not plan.holds
    assert not {old for proposal in plan.applied for old, _ in proposal.pairs} & set(names)


@pytest.mark.slow
@settings(max_examples=short_or_long(40, 200), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(models(), st.permutations(["q", "k", "v", "o"]), st.sampled_from(["", "module.", "net.backbone.", "a."]))
def test_names_that_were_swapped_are_not_swapped_back(shapes: Shapes, swapped: list[str], front: str) -> None:
    """The leaf that the checkpoint calls q is loaded as q, even if it contains the values of another leaf."""
    swap = dict(zip(["q", "k", "v", "o"], swapped, strict=True))
    source = {
        front + ".".join(swap.get(step, step) for step in name.split(".")): value
        for name, value in built(shapes).state_dict().items()
    }
    assume(set(source) == {front + name for name in shapes})
    plan = lw.plan(built(shapes), source, rename="auto")
    if plan.holds:
        for name, value in loaded(shapes, source, plan).items():
            assert torch.equal(value, source[front + name]), name


@pytest.mark.parametrize(
    ("one", "other"),
    [("wq", "wk"), ("WV", "WO"), ("qproj", "vproj"), ("queries", "keys"), ("self_attn", "cross_attn"), ("src", "tgt")],
)
def test_names_with_opposite_words_are_not_paired_because_nothing_else_is_left(one: str, other: str) -> None:
    plan = lw.plan(built({f"layers.0.{one}.weight": (4, 4)}), {f"h.0.{other}.weight": torch.ones(4, 4)}, rename="auto")
    assert not plan.applied
    assert not plan.holds
