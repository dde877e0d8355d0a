"""`lw.diff` of tied leaves and of views of the same memory."""

import copy
from pathlib import Path

import torch
from tests.inspect.helpers import Tied, kinds, state
from torch import nn

import leafwise as lw


def test_leaves_that_were_tied_or_untied_are_listed() -> None:
    net = Tied()
    untied = lw.untie(copy.deepcopy(net), "head.weight")
    found = lw.diff(net, untied)
    assert kinds(found) == {"head.weight": ("untied",)}
    assert found["head.weight"].comparison.changed == 0
    assert "embed.weight" in found["head.weight"].notes[0]
    assert kinds(lw.diff(untied, net)) == {"head.weight": ("tied",)}
    with torch.no_grad():
        untied.head.weight.add_(1)
    assert kinds(lw.diff(net, untied)) == {"head.weight": ("changed", "untied")}


def test_a_shared_leaf_is_compared_once() -> None:
    net, other = Tied(), Tied()
    found = lw.diff(net, other)
    assert [change.path for change in found].count("embed.weight") == 1
    assert "head.weight" not in found


def test_a_transposed_tie_that_was_undone_is_found() -> None:
    weight = torch.randn(3, 5)
    tied = {"encoder": weight, "decoder": weight.T}
    assert lw.diff(tied, {name: value.clone() for name, value in tied.items()})["decoder"].kinds == ("untied",)
    other = weight.clone()
    assert lw.diff(tied, {"encoder": other, "decoder": other.T}).same


def test_a_name_of_a_tied_leaf_that_is_missing_on_the_other_side_is_noted() -> None:
    net = Tied()
    rest = state(net)
    del rest["head.weight"]
    found = lw.diff(net, rest)
    assert found.same
    assert "head.weight is only in a" in found.notes[0]
    assert "embed.weight" in found.notes[0]


def test_different_views_of_the_same_leaf_differ(tmp_path: Path) -> None:
    q = torch.randn(8, 4)
    r = q.clone()
    one = {"qkv": q, "k": q[2:6]}
    assert lw.diff(one, {"qkv": r, "k": r[2:6]}).same
    for other in ({"qkv": q, "k": q[3:7]}, {"qkv": r, "k": r[3:7]}, {"qkv": r, "k": r[:2]}):
        torch.save(one, tmp_path / "one.pt")
        torch.save(other, tmp_path / "other.pt")
        assert not lw.diff(one, other).same
        assert not lw.diff(tmp_path / "one.pt", tmp_path / "other.pt").same
    found = lw.diff(one, {"qkv": r, "k": r[3:7]})["k"]
    assert found.kinds == ("changed", "untied", "tied")
    assert found.notes == ("in a it is qkv[2:6, :]", "in b it is qkv[3:7, :]")


def test_different_orders_of_axes_differ() -> None:
    c = torch.randn(3, 3, 3)
    r = c.clone()
    one = {"w": c, "p": c.permute(0, 2, 1)}
    assert lw.diff(one, {"w": r, "p": r.permute(0, 2, 1)}).same
    assert kinds(lw.diff(one, {"w": r, "p": r.permute(2, 1, 0)})) == {"p": ("changed", "untied", "tied")}


def test_a_buffer_that_is_another_view_of_its_parameter_has_changed() -> None:
    class Viewed(nn.Module):
        def __init__(self, start: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(32.0).reshape(8, 4))
            self.register_buffer("part", self.weight.data[start : start + 4])

    assert lw.diff(Viewed(2), Viewed(2)).same
    assert "changed" in lw.diff(Viewed(2), Viewed(3))["part"].kinds


def test_views_that_no_slice_describes_are_compared_by_value() -> None:
    w = torch.randn(4, 6)
    r = w.clone()
    for order in (["w", "flat"], ["flat", "w"]):
        one = {name: {"w": w, "flat": w.view(-1)}[name] for name in order}
        assert lw.diff(one, {name: {"w": r, "flat": r.view(-1)}[name] for name in order}).same
    assert kinds(lw.diff({"w": w, "x": w.view(-1)}, {"w": r, "x": r.view(-1).flip(0)}))["x"] == ("changed", "untied")


def test_a_leaf_of_which_only_a_part_is_left_is_removed() -> None:
    q = torch.randn(8, 4)
    whole, part = {"qkv": q, "k": q[2:6]}, {"k": q[2:6].clone()}
    assert kinds(lw.diff(whole, part)) == {"qkv": ("removed",)}
    assert kinds(lw.diff(part, whole)) == {"qkv": ("added",)}
    three = {"v": q[6:], **whole}
    assert kinds(lw.diff(three, part)) == {"qkv": ("removed",)}


def test_a_view_that_only_one_side_has_is_noted() -> None:
    w, q = torch.randn(4, 6), torch.randn(8, 4)
    found = lw.diff({"w": w, "wt": w.t()}, {"w": w})
    assert found.same
    assert found.notes == ["wt is only in a, where it is w.T"]
    assert lw.diff({"wt": w.t()}, {"w": w, "wt": w.t()}).notes == ["w is only in b, where it is tied to wt"]
    found = lw.diff({"k": q[:6].clone()}, {"k": q[:6], "z": q[:2]})
    assert found.same
    assert found.notes == ["z is only in b, where it is k[0:2, :]"]


def test_a_note_names_the_other_name_of_the_same_leaf() -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    found = lw.diff(net, {"head.weight": net["head"].weight.detach().clone()})
    assert found.same
    assert found.notes == ["embed.weight is only in a, where it is another name of head.weight"]


def test_parts_of_a_leaf_that_do_not_overlap_are_not_tied() -> None:
    q = torch.randn(8, 4)
    found = lw.diff({"q": q, "k": q[2:6], "v": q[6:]}, {"k": q[2:6].clone(), "v": q[6:].clone()})
    assert kinds(found) == {"q": ("removed",)}


def test_the_same_part_of_a_reshaped_leaf_is_still_tied() -> None:
    w = torch.arange(32.0).reshape(8, 4)
    v = w.clone().reshape(4, 8)
    assert kinds(lw.diff({"w": w, "k": w[2:4]}, {"w": v, "k": v[2:4]})) == {"w": ("reshaped",), "k": ("reshaped",)}
