"""Arrays whose axes are lined up by name, and the parts of layers that leaves are."""

from typing import Any

import numpy as np
import pytest

from leafwise.core.roles.layer_parts import CarriedLeaf, parts_of_both
from leafwise.core.roles.named_axes import laid_out, regrouped
from leafwise.core.roles.recipes import Flipped, Recipe, RecipeError, Summed, Taken, Zeros, concatenated
from leafwise.files.arrays.assembled import Assembled
from leafwise.files.arrays.live import Copied


def assembled(recipe: Recipe, **arrays: Any) -> Assembled:
    return Assembled(recipe, {name: Copied(array) for name, array in arrays.items()})


def numbers(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_axes_are_turned_and_flipped_by_name() -> None:
    kernel = numbers(2, 3, 4, 5)
    recipe = laid_out(Taken("a", (2, 3, 4, 5)), ("in", "out", "h", "w"), ("-h", "-w", "in", "out"), None)
    made = assembled(recipe, a=kernel)
    expected = kernel.transpose(2, 3, 0, 1)[::-1, ::-1]
    np.testing.assert_array_equal(made.read(), expected)
    np.testing.assert_array_equal(made.read((slice(1, 3),)), expected[1:3])
    assert recipe.words() == ("transposed (in, out, h, w → -h, -w, in, out)", "flipped")


@pytest.mark.parametrize(
    ("axes", "shape", "wanted", "new"),
    [
        (("out", "in"), (6, 4), ("in", "heads", "head_dim"), (4, 2, 3)),
        (("out", "in"), (4, 6), ("heads", "head_dim", "out"), (2, 3, 4)),
        (("out",), (6,), ("heads", "head_dim"), (2, 3)),
        (("out",), (6,), ("out", "h", "w"), (6, 1, 1)),
        (("features",), (1,), (), ()),
    ],
)
def test_axes_are_divided_into_heads_and_back(axes: Any, shape: Any, wanted: Any, new: Any) -> None:
    array = numbers(*shape)
    there = assembled(laid_out(Taken("a", shape), axes, wanted, new), a=array).read()
    assert there.shape == new
    back = assembled(laid_out(Taken("a", new), wanted, axes, shape), a=there).read()
    np.testing.assert_array_equal(back, array)


def test_axes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"its axes are \(out, in\), and cannot become \(vocab, features\)"):
        laid_out(Taken("a", (2, 3)), ("out", "in"), ("vocab", "features"), (2, 3))
    with pytest.raises(RecipeError, match="cannot become"):
        laid_out(Taken("a", (2, 3)), ("out", "h"), ("out",), (2,))


def test_groups_of_a_transposed_convolution() -> None:
    kernel = numbers(4, 3, 5)  # 4 inputs, and the 3 outputs of each of 2 groups
    recipe = regrouped(Taken("a", (4, 3, 5)), ("in", "out", "w"), ("out", "in", "-w"), (6, 2, 5))
    made = assembled(laid_out(recipe, ("in", "out", "w"), ("out", "in", "-w"), (6, 2, 5)), a=kernel).read()
    expected = kernel.reshape(2, 2, 3, 5).transpose(0, 2, 1, 3).reshape(6, 2, 5)[..., ::-1]
    np.testing.assert_array_equal(made, expected)
    plain = Taken("a", (4, 3, 5))
    assert regrouped(plain, ("in", "out", "w"), ("out", "in", "-w"), (3, 4, 5)) is plain


def test_sums_zeros_and_flips() -> None:
    one, two = Taken("a", (3,)), Taken("b", (3,))
    first, second = numbers(3), numbers(3) + 5
    recipe = concatenated([Summed((one, two)), Zeros(one, (2,)), Flipped(two, (0,))], 0)
    made = assembled(recipe, a=first, b=second)
    expected = [*(first + second), 0, 0, *second[::-1]]
    np.testing.assert_array_equal(made.read(), expected)
    np.testing.assert_array_equal(made.read((slice(2, 6),)), expected[2:6])
    assert recipe.words() == ("summed", "zeros", "flipped", "concatenated")
    assert recipe.renamed(lambda name: f"x.{name}").names() == ["x.a", "x.b"]
    assert not recipe.can_be_read_in_parts()
    with pytest.raises(RecipeError, match="cannot be added"):
        Summed((one, Taken("c", (4,))))


def leaf(name: str, *shape: int) -> CarriedLeaf:
    return CarriedLeaf(name, shape, None, None, True, name.rpartition(".")[2])


def keys(*leaves: CarriedLeaf) -> list[tuple[str, ...]]:
    return [parts.keys for parts in parts_of_both(leaves, [])[0]]


def test_names_of_all_frameworks_are_the_same_parts() -> None:
    torch = keys(leaf("net.0.weight", 4, 3), leaf("attn.in_proj_weight", 12, 4), leaf("attn.out_proj.weight", 4, 4))
    assert torch == [
        ("net.0.weight",),
        ("attn.query.weight", "attn.key.weight", "attn.value.weight"),
        ("attn.out.weight",),
    ]
    names = ("query", "key", "value", "out")
    flax = keys(leaf("net.layers.0.kernel", 3, 4), *(leaf(f"attn.{name}.kernel", 4, 2, 2) for name in names))
    assert flax == [("net.0.weight",), *((f"attn.{name}.weight",) for name in names)]


def test_levels_are_left_out_only_if_names_stay_distinct() -> None:
    assert keys(leaf("layers.0.weight", 2, 2)) == [("0.weight",)]
    both = leaf("layers.0.weight", 2, 2), leaf("0.weight", 2, 2)
    assert keys(*both) == [("layers.0.weight",), ("0.weight",)]


def test_two_weights_of_one_layer_keep_their_names() -> None:
    assert keys(leaf("fc.kernel", 2, 2), leaf("fc.scale", 2)) == [("fc.kernel",), ("fc.scale",)]


def test_the_gates_of_cells() -> None:
    gru = keys(leaf("gru.weight_hh_l0", 6, 2), leaf("gru.bias_ih_l0", 6), leaf("gru.bias_hh_l0", 6))
    assert gru[1] == ("gru.bias.r", "gru.bias.z", "gru.bias_ih.n")
    assert gru[2] == ("gru.bias.r", "gru.bias.z", "gru.bias_hh.n")
    layers = keys(
        leaf("lstm.weight_hh_l0", 8, 2), leaf("lstm.weight_hh_l1_reverse", 8, 2), leaf("lstm.weight_hh_l1", 8, 2)
    )
    assert [names[0] for names in layers] == [
        "lstm.0.weight_hh.i", "lstm.1.reverse.weight_hh.i", "lstm.1.weight_hh.i"
    ]  # fmt: skip
