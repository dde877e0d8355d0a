"""Which renames are certain, and which are guesses."""

import pytest

from leafwise.core.pairing.families import Unmatched
from leafwise.core.pairing.proposals import propose


def named(*names: str, shape: tuple[int, ...] = (2, 2)) -> list[Unmatched]:
    return [Unmatched(name, shape) for name in names]


def certain(targets: list[Unmatched], sources: list[Unmatched]) -> dict[str, str]:
    """By the name of the source, the target that it certainly is."""
    return dict(pair for proposal in propose(targets, sources) if proposal.certain for pair in proposal.pairs)


def weights(*layers: str) -> list[Unmatched]:
    return named(*(f"{layer}.weight" for layer in layers))


# -- what is certain ---------------------------------------------------------------------------------------


def test_words_with_one_meaning_are_matched() -> None:
    ours = [f"layers.{n}.attn.{which}_proj" for n in range(3) for which in "qkvo"]
    theirs = [f"h.{n}.attention.{which}" for n in range(3) for which in ("value", "output", "key", "query")]
    found = certain(weights(*ours), weights(*theirs))
    assert len(found) == 12
    for old, new in found.items():
        _, number, _, which, _ = old.split(".")
        assert new == f"layers.{number}.attn.{which[0]}_proj.weight"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["enc.q", "enc.k", "enc.fc"], ["backbone.q", "backbone.k", "backbone.fc"]),
        (["net.enc.q", "net.enc.k"], ["q", "k"]),
        (["q", "k"], ["q.base_layer", "k.base_layer"]),
        (["layer.0.norm1", "layer.0.norm2"], ["blocks.0.ln_1", "blocks.0.ln_2"]),
        (["lm.model.embed", "lm.head"], ["model.lm.embed", "head"]),
        (["h.0.query", "h.0.key", "h.0.value"], ["h.0.q_proj", "h.0.k_proj", "h.0.v_proj"]),
    ],
)
def test_names_that_keep_what_tells_them_apart_are_matched(old: list[str], new: list[str]) -> None:
    for names in (old, old[::-1]):  # the order does not count
        found = certain(weights(*new), weights(*names))
        assert found == {f"{one}.weight": f"{other}.weight" for one, other in zip(old, new, strict=True)}


def test_a_change_throughout_is_certain_though_others_are_left() -> None:
    ours = [*weights("a.q.base_layer", "a.v.base_layer", "head"), *named("a.q.lora_A.weight", shape=(1, 2))]
    theirs = weights("a.q", "a.v", "old_head")
    assert certain(ours, theirs) == {"a.q.weight": "a.q.base_layer.weight", "a.v.weight": "a.v.base_layer.weight"}


def test_a_shape_decides_only_where_everything_finds_a_partner() -> None:
    ours = [*named("x.weight"), *named("y.weight", shape=(3, 3))]
    theirs = [*named("a.weight"), *named("b.weight", shape=(3, 3))]
    assert certain(ours, theirs) == {"a.weight": "x.weight", "b.weight": "y.weight"}
    assert certain(ours, [*theirs, *named("c.weight", shape=(5,))]) == {}


def test_the_bias_goes_with_the_weight() -> None:
    def layers(wide: str, norm: str) -> list[Unmatched]:
        return [
            *named(f"{wide}.weight", shape=(4, 8)), *named(f"{wide}.bias", f"{norm}.bias", shape=(4,)),
            *named(f"{norm}.scale", shape=(4,)),
        ]  # fmt: skip

    assert certain(layers("fc", "ln"), layers("dense", "n"))["dense.bias"] == "fc.bias"


# -- what is not -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["norm1", "norm2"], ["before", "after"]),
        (["a.q", "a.k", "b.q", "b.k"], ["left.q", "left.k", "right.q", "right.k"]),
        (["w1", "w2", "w3"], ["gate", "down", "up"]),
        (["ff0", "ff1"], ["fc1", "fc2"]),  # numbered from 0 and from 1
        (["x.norm0", "x.norm1"], ["y.norm1", "y.norm2"]),
        (["attn_norm", "ff_norm"], ["input_norm", "post_attention_norm"]),  # attn_norm is the input's
        (["h.0.fc", "h.1.fc"], ["layers.1.fc", "layers.2.fc"]),
        (["head.original_module", "head.modules_to_save.default"], ["head"]),
        (["head"], ["head.original_module", "head.modules_to_save.default"]),
        (["a.q"], ["a.q.base_layer", "a.q.adapter"]),
        (["teacher.q", "student.q"], ["q"]),
        (["decoder.fc", "decoder.out"], ["encoder.fc", "encoder.out"]),
        (["order_head", "roor_order_head"], ["relative_order_head", "successor_order_head"]),
        (["layers.0"], ["layers.12"]),  # what is left of layers that have been moved by one
        (["stages.0.blocks.1", "stages.1.blocks.0"], ["blocks.0.stages.1", "blocks.1.stages.0"]),
    ],
)
def test_names_that_do_not_tell_which_is_which_are_not_matched(old: list[str], new: list[str]) -> None:
    found = propose(weights(*new), weights(*old))
    assert found
    assert not any(proposal.certain for proposal in found)


def test_a_bias_is_also_known_by_the_last_of_its_words() -> None:
    ours, theirs = named("attn.query.bias", "attn.value.bias"), named("attn.q_bias", "attn.v_bias")
    assert certain(ours, theirs) == {"attn.q_bias": "attn.query.bias", "attn.v_bias": "attn.value.bias"}
    assert propose(weights("attn.query"), named("attn.q_bias")) == []


def test_a_guess_lists_what_could_be_what() -> None:
    (guess,) = propose(weights("head.original_module", "head.modules_to_save.default"), weights("head"))
    assert guess.sources == ("head.weight",)
    assert guess.targets == ("head.original_module.weight", "head.modules_to_save.default.weight")
    assert propose(weights("a"), named("b.weight", shape=(3, 3))) == []
    assert propose(weights("a"), named("a.bias")) == []  # a weight is not a bias


def test_more_names_than_can_be_compared_are_listed_in_order() -> None:
    ours = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(100)]
    found = propose(weights(*ours), weights(*(f"z{name}" for name in ours)))
    assert [proposal.pairs[0] for proposal in found] == [(f"z{name}.weight", f"{name}.weight") for name in ours]
    assert not any(proposal.certain for proposal in found)
