"""`lw.edit` changes one checkpoint: names, arrays, ties and plain values, compared with doing it in torch."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.checkpoint.models import Tied, bits, run, train

import leafwise as lw


class Unknown:
    """A class that leafwise does not load."""


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "bert.embed.weight": torch.randn(11, 6),
        "bert.0.attn.qkv.weight": torch.randn(12, 6),
        "bert.0.attn.qkv.bias": torch.randn(12),
        "bert.1.attn.qkv.weight": torch.randn(12, 6),
        "bert.1.attn.qkv.bias": torch.randn(12),
        "bert.norm.weight": torch.randn(6),
        "head.weight": torch.randn(3, 6),
        "count": torch.tensor(5),
    }


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "a.safetensors"
    save_file(state(), path, {"format": "pt", "author": "me"})
    return str(path)


def edited(source: Any, tmp_path: Path, **options: Any) -> dict[str, torch.Tensor]:
    out = tmp_path / "out.safetensors"
    result = lw.edit(source, out, **options)
    assert result.written
    assert result.path == str(out)
    assert lw.verify(out).ok
    return load_file(out)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == value.dtype and torch.equal(found[name], value) for name, value in expected.items()
    )


# -- names ---------------------------------------------------------------------------------------------------


def test_an_edit_without_changes_copies_everything(source: str, tmp_path: Path) -> None:
    assert same(edited(source, tmp_path), state())
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata()["author"] == "me"
        assert list(file.keys())


def test_names_are_renamed_as_in_load(source: str, tmp_path: Path) -> None:
    expected = {re.sub("^bert", "backbone", name): value for name, value in state().items()}
    assert same(edited(source, tmp_path, rename={"bert": "backbone"}), expected)
    assert same(edited(source, tmp_path, rename=[(r"^bert\.", "backbone.")]), expected)
    assert same(edited(source, tmp_path, rename=lambda name: name.replace("bert.", "backbone.")), expected)
    dropped = {name: value for name, value in expected.items() if name != "head.weight"}
    assert same(edited(source, tmp_path, rename={"bert": "backbone", "head": None}), dropped)


def test_leaves_are_kept_and_dropped_by_query(source: str, tmp_path: Path) -> None:
    weights = {name: value for name, value in state().items() if name.endswith(".weight")}
    assert same(edited(source, tmp_path, keep="**.weight"), weights)
    assert same(edited(source, tmp_path, keep=["bert.**", "head.**"], drop=re.compile("bias")), weights)
    assert same(edited(source, tmp_path, keep=lw.where(ndim=0)), {"count": state()["count"]})


def test_a_query_for_a_node_means_everything_below_it(tmp_path: Path) -> None:
    torch.save(
        {"model": {"w": torch.ones(2)}, "optimizer": {"lr": 0.1, "m": torch.ones(2)}, "epoch": 3}, tmp_path / "a.pt"
    )
    lw.edit(tmp_path / "a.pt", tmp_path / "b.safetensors", drop="optimizer")
    with lw.open(tmp_path / "b.safetensors") as t:
        assert [str(path) for path, _ in t.items()] == ["model.w"]
        assert {str(path): value for path, value in t.scalars.items() if "__" not in str(path)} == {"epoch": 3}


# -- arrays --------------------------------------------------------------------------------------------------


def test_floats_are_cast_and_the_last_query_that_matches_counts(source: str, tmp_path: Path) -> None:
    expected = {name: value.bfloat16() if value.is_floating_point() else value for name, value in state().items()}
    assert same(edited(source, tmp_path, cast="bfloat16"), expected)
    expected["bert.norm.weight"] = state()["bert.norm.weight"]
    assert same(edited(source, tmp_path, cast={"**": torch.bfloat16, "**.norm.*": "float32"}), expected)


def test_a_value_that_does_not_fit_is_an_error_that_names_the_leaf_unless_it_may_saturate(tmp_path: Path) -> None:
    save_file({"small": torch.ones(3), "large": torch.tensor([1.0, 1e9])}, tmp_path / "a.safetensors")
    out = tmp_path / "b.safetensors"
    with pytest.raises(lw.Error, match=r"large.*65504"):
        lw.edit(tmp_path / "a.safetensors", out, cast="float16")
    assert not out.exists()
    assert not list(tmp_path.glob(".leafwise*"))
    lw.edit(tmp_path / "a.safetensors", out, cast="float16", saturate=True)
    assert load_file(out)["large"].tolist() == [1.0, 65504.0]


def test_arrays_are_transposed(source: str, tmp_path: Path) -> None:
    expected = {name: value.T.contiguous() if "qkv.weight" in name else value for name, value in state().items()}
    assert same(edited(source, tmp_path, transpose="**.qkv.weight"), expected)
    save_file({"conv": torch.arange(120).reshape(2, 3, 4, 5)}, tmp_path / "c.safetensors")
    turned = edited(tmp_path / "c.safetensors", tmp_path, transpose={"conv": (3, 2, 0, 1)})
    assert torch.equal(turned["conv"], torch.arange(120).reshape(2, 3, 4, 5).permute(3, 2, 0, 1))


def test_an_axis_is_padded_or_cut(source: str, tmp_path: Path) -> None:
    embed = state()["bert.embed.weight"]
    longer = edited(source, tmp_path, resize={"bert.embed.weight": 13})["bert.embed.weight"]
    assert torch.equal(longer, torch.cat([embed, torch.zeros(2, 6)]))
    mean = edited(source, tmp_path, resize={"bert.embed.weight": {"size": 13, "fill": "mean"}})["bert.embed.weight"]
    assert torch.equal(mean[:11], embed)
    assert torch.allclose(mean[11:], embed.mean(0), atol=1e-6)
    along = edited(source, tmp_path, resize={"bert.embed.weight": {"size": 8, "axis": -1, "fill": "mean"}})
    assert torch.allclose(along["bert.embed.weight"][:, 6:], embed.mean(1, keepdim=True), atol=1e-6)
    shorter = edited(source, tmp_path, resize={"bert.embed.weight": {"size": 4, "axis": 1}})["bert.embed.weight"]
    assert torch.equal(shorter, embed[:, :4])
    filled = edited(source, tmp_path, resize={"bert.embed.weight": {"size": 12, "fill": -1.5}})["bert.embed.weight"]
    assert filled[11].tolist() == [-1.5] * 6


def test_fused_arrays_are_split_and_fused_again(source: str, tmp_path: Path) -> None:
    expected = {name: value for name, value in state().items() if "qkv" not in name}
    for name, value in state().items():
        if "qkv" in name:
            for part, piece in zip("qkv", value.chunk(3), strict=True):
                expected[name.replace("qkv", part)] = piece
    split = edited(source, tmp_path, split={"bert.*.attn.qkv": ["q", "k", "v"]})
    assert same(split, expected)
    save_file(split, tmp_path / "split.safetensors")
    assert same(edited(tmp_path / "split.safetensors", tmp_path, fuse={"bert.*.attn.{q,k,v}": "qkv"}), state())


def test_parts_of_different_sizes_and_of_interleaved_heads_are_split_and_fused(tmp_path: Path) -> None:
    heads, size = 4, 3
    q, k, v = (torch.randn(heads * size, 7) for _ in range(3))
    # The layout of GPT-NeoX and BLOOM: for each head its part of q, then of k, then of v.
    by_head = torch.stack([part.reshape(heads, size, 7) for part in (q, k, v)], 1).reshape(-1, 7)
    save_file({"a.qkv.weight": by_head, "b.qkv.weight": torch.cat([q, k[:3], v[:3]])}, tmp_path / "a.safetensors")
    split = edited(
        tmp_path / "a.safetensors",
        tmp_path,
        split={
            "a.qkv": {"into": ["q", "k", "v"], "heads": heads},
            "b.qkv": {"into": ["q", "k", "v"], "sizes": [12, 3, 3]},
        },
    )
    expected = {"a.q": q, "a.k": k, "a.v": v, "b.q": q, "b.k": k[:3], "b.v": v[:3]}
    assert same(split, {f"{name}.weight": value for name, value in expected.items()})
    save_file({name: value for name, value in split.items() if name[0] == "a"}, tmp_path / "s.safetensors")
    fused = edited(tmp_path / "s.safetensors", tmp_path, fuse={"a.{q,k,v}": {"into": "qkv", "heads": heads}})
    assert torch.equal(fused["a.qkv.weight"], by_head)


def test_an_axis_counted_from_the_end_splits_weights_and_biases(tmp_path: Path) -> None:
    weight, bias = torch.randn(4, 12), torch.randn(12)  # as in GPT-2
    save_file({"h.c_attn.weight": weight, "h.c_attn.bias": bias}, tmp_path / "a.safetensors")
    split = edited(tmp_path / "a.safetensors", tmp_path, split={"h.c_attn": {"into": ["q", "k", "v"], "axis": -1}})
    assert torch.equal(split["h.k.weight"], weight[:, 4:8])
    assert torch.equal(split["h.v.bias"], bias[8:])
    with pytest.raises(lw.EditError, match=r"h.c_attn.bias.*no axis 1.*axis=-1"):
        lw.edit(
            tmp_path / "a.safetensors",
            tmp_path / "b.safetensors",
            split={"h.c_attn": {"into": ["q", "k", "v"], "axis": 1}},
        )


@pytest.mark.slow
def test_large_arrays_are_changed_in_parts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    big = torch.randn(3000, 2500)
    wide = torch.randn(3, 1_500_000)
    save_file({"big": big, "wide": wide}, tmp_path / "a.safetensors")
    found = edited(tmp_path / "a.safetensors", tmp_path, transpose=["big", "wide"], cast={"wide": "float64"})
    assert torch.equal(found["big"], big.T)
    assert torch.equal(found["wide"], wide.T.double())
    found = edited(
        tmp_path / "a.safetensors",
        tmp_path,
        split={"big": {"into": ["x", "y"], "axis": 1}},
        resize={"wide": {"size": 2_000_001, "axis": 1, "fill": 1}},
    )
    assert torch.equal(found["y"], big[:, 1250:])
    assert torch.equal(found["wide"][:, :1_500_000], wide)
    assert (found["wide"][:, 1_500_000:] == 1).all()


def test_no_array_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts begin and end in the middle of rows."""
    from leafwise.files.arrays.assembled import Assembled
    from leafwise.files.arrays.derived import LowRankSum

    torch.manual_seed(0)
    wide = torch.randn(1001, 2003)
    save_file({"w": wide}, tmp_path / "a.safetensors")
    sizes = []
    for cls in (Assembled, LowRankSum):

        def read(self: Any, index: Any = (), cls: Any = cls, real: Any = cls.read) -> Any:
            value = real(self, index)
            sizes.append(value.nbytes)
            return value

        monkeypatch.setattr(cls, "read", read)
    found = edited(tmp_path / "a.safetensors", tmp_path, resize={"w": {"size": 2500, "axis": 1, "fill": 2}})
    assert torch.equal(found["w"], torch.cat([wide, torch.full((1001, 497), 2.0)], 1))
    assert len(sizes) > 1
    assert max(sizes) <= 9 << 20


# -- ties ----------------------------------------------------------------------------------------------------


def tied_file(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    model = Tied()
    path = tmp_path / "tied.safetensors"
    lw.save(model, path)
    return str(path), model.state_dict()


def test_ties_roles_kinds_and_checksums_are_kept(tmp_path: Path) -> None:
    path, _ = tied_file(tmp_path)
    lw.edit(path, tmp_path / "b.safetensors", rename={"embed": "tokens"}, cast="bfloat16")
    with lw.open(path) as old, lw.open(tmp_path / "b.safetensors") as new:
        assert new.counts.parameters == old.counts.parameters
        assert new.counts.buffers == old.counts.buffers
        (tie,) = new.ties
        assert [(str(name.path), name.role) for name in tie.names] == [
            ("tokens.weight", "embedding.table"),
            ("head.weight", "linear.weight"),
        ]
        assert lw.verify(tmp_path / "b.safetensors").unchecked == 0


def test_a_tie_survives_when_the_first_of_its_names_is_dropped(tmp_path: Path) -> None:
    shared = torch.randn(4, 3)
    torch.save({"a": shared, "b": shared, "c": shared.T, "d": shared[1:3]}, tmp_path / "a.pt")
    lw.edit(tmp_path / "a.pt", tmp_path / "b.safetensors", drop="a")
    with lw.open(tmp_path / "b.safetensors") as t:
        assert {name: t[name].numpy().tolist() for name in "bcd"} == {
            "b": shared.tolist(),
            "c": shared.T.tolist(),
            "d": shared[1:3].tolist(),
        }
        assert t.counts.leaves == 1
    lw.edit(tmp_path / "a.pt", tmp_path / "b.safetensors")
    with lw.open(tmp_path / "b.safetensors") as t:
        assert t.counts.leaves == 1
        assert np.array_equal(t["d"].numpy(), shared[1:3])


def test_names_are_untied_and_tied(tmp_path: Path) -> None:
    path, weights = tied_file(tmp_path)
    lw.edit(path, tmp_path / "b.safetensors", untie="head.weight")
    with lw.open(tmp_path / "b.safetensors") as t:
        assert not t.ties
        assert np.array_equal(t["head.weight"].numpy(), weights["embed.weight"].numpy())
    lw.edit(tmp_path / "b.safetensors", tmp_path / "c.safetensors", tie={"head.weight": "embed.weight"})
    with lw.open(tmp_path / "c.safetensors") as t, lw.open(path) as old:
        assert len(t.ties) == 1
        assert t.counts.parameters == old.counts.parameters


def test_ties_are_made_of_names_that_are_renamed(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    save_file({"a": weight, "b": weight.clone(), "c": weight + 1}, tmp_path / "a.safetensors")
    rename = {"a": "x", "b": "y", "c": "a"}
    lw.edit(tmp_path / "a.safetensors", tmp_path / "b.safetensors", tie={"b": "a"}, rename=rename)
    with lw.open(tmp_path / "b.safetensors") as t:
        assert {frozenset(str(name.path) for name in tie.names) for tie in t.ties} == {frozenset({"x", "y"})}
        assert np.array_equal(t["a"].numpy(), weight + 1)
    with pytest.raises(lw.EditError, match="their values differ"):
        lw.edit(tmp_path / "a.safetensors", tmp_path / "b.safetensors", tie={"c": "a"}, rename=rename)


def test_a_transposed_tie_and_a_new_name_are_made(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    save_file({"encoder": weight, "decoder": weight.T.contiguous()}, tmp_path / "a.safetensors")
    lw.edit(tmp_path / "a.safetensors", tmp_path / "b.safetensors", tie={"decoder": "encoder.T", "new": "encoder"})
    assert load_file(tmp_path / "b.safetensors").keys() == {"encoder"}
    with lw.open(tmp_path / "b.safetensors") as t:
        assert np.array_equal(t["decoder"].numpy(), weight.T)
        assert np.array_equal(t["new"].numpy(), weight)


def test_different_values_are_tied_only_if_the_others_are_dropped(tmp_path: Path) -> None:
    first, second = torch.randn(4, 3), torch.randn(4, 3)
    save_file({"a": first, "b": second}, tmp_path / "a.safetensors")
    out = tmp_path / "b.safetensors"
    with pytest.raises(lw.EditError, match=r"cannot tie b to a: their values differ.*drop='b'"):
        lw.edit(tmp_path / "a.safetensors", out, tie={"b": "a"})
    assert not out.exists()
    lw.edit(tmp_path / "a.safetensors", out, tie={"b": "a"}, drop="b")
    with lw.open(out) as t:
        assert np.array_equal(t["b"].numpy(), first)


def test_tied_leaves_are_copied_for_other_readers(tmp_path: Path) -> None:
    shared = torch.randn(4, 3)
    torch.save({"a": shared, "b": shared, "c": shared.T, "d": shared[1:3]}, tmp_path / "a.pt")
    found = edited(tmp_path / "a.pt", tmp_path, ties="copy")
    assert same(found, {"a": shared, "b": shared, "c": shared.T, "d": shared[1:3]})


def test_changing_a_tied_leaf_changes_it_under_all_its_names(tmp_path: Path) -> None:
    path, weights = tied_file(tmp_path)
    rows = weights["embed.weight"].shape[0] + 2
    lw.edit(path, tmp_path / "b.safetensors", resize={"head.weight": rows})
    with lw.open(tmp_path / "b.safetensors") as t:
        assert t["embed.weight"].shape == t["head.weight"].shape == (rows, weights["embed.weight"].shape[1])
        assert len(t.ties) == 1


# -- plain values --------------------------------------------------------------------------------------------


def test_plain_values_are_kept_set_and_deleted(tmp_path: Path) -> None:
    values = {"epoch": 3, "name": "x", "config": {"lr": 0.1, "layers": [1, 2], "deep": {"a": None}}, "pair": (1, 2.5)}
    torch.save({"w": torch.ones(2), **values}, tmp_path / "a.pt")
    out = tmp_path / "b.safetensors"

    def found() -> dict[str, Any]:
        with lw.open(out) as t:
            return {str(path): value for path, value in t.scalars.items() if not str(path).startswith("__")}

    with lw.open(tmp_path / "a.pt") as t:
        before = {str(path): value for path, value in t.scalars.items()}
    lw.edit(tmp_path / "a.pt", out)
    assert found() == before
    lw.edit(
        tmp_path / "a.pt",
        out,
        set={"epoch": 0, "config.lr": 0.5, "config.deep.a": [3], "new.value": "y"},
        delete=["name", "config.layers"],
    )
    expected = {**before, "epoch": 0, "config.lr": 0.5, "new.value": "y"}
    del expected["name"], expected["config.layers"]
    assert {name: value for name, value in found().items() if "deep" not in name} == {
        name: value for name, value in expected.items() if "deep" not in name
    }
    with lw.open(out) as t:
        assert t["config.deep"]["a"] == [3] if "config.deep.a" not in found() else found()["config.deep.a"] == [3]


def test_items_of_plain_values_are_dropped_kept_and_set(tmp_path: Path) -> None:
    config = {"lr": 0.1, "betas": [0.9, 0.99, 0.999], "deep": {"a": 1, "b": 2}, "x.y": 3}
    torch.save({"w": torch.ones(2), "config": config, "epoch": 3}, tmp_path / "a.pt")

    def edited_config(**options: Any) -> Any:
        lw.edit(tmp_path / "a.pt", tmp_path / "b.safetensors", **options)
        target: dict[str, Any] = {"w": torch.zeros(2), "config": None, "epoch": None}
        return lw.load(target, tmp_path / "b.safetensors")["config"]

    assert edited_config() == config
    without = {key: value for key, value in config.items() if key != "lr"}
    assert edited_config(drop="config.lr") == without
    assert edited_config(delete="config.deep.*") == {**config, "deep": {}}
    assert edited_config(delete="config.x.y") == {key: value for key, value in config.items() if key != "x.y"}
    assert edited_config(delete=["config.betas.0", "config.betas.2"])["betas"] == [0.99]
    assert edited_config(keep=["w", "config.deep.b", "epoch"]) == {"deep": {"b": 2}}
    assert edited_config(set={"config.new.inner": [1]})["new"] == {"inner": [1]}
    assert edited_config(set={"config.betas.1": 0.5})["betas"] == [0.9, 0.5, 0.999]
    for name in ("config.betas.7", "epoch.x"):
        with pytest.raises(lw.EditError, match="which has no such item"):
            edited_config(set={name: 1})


def test_metadata_is_kept_and_added(source: str, tmp_path: Path) -> None:
    edited(source, tmp_path, metadata={"note": "smaller"})
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata.items() >= {"format": "pt", "author": "me", "note": "smaller"}.items()
    with lw.open(tmp_path / "out.safetensors") as t:
        assert [str(path) for path in t.scalars].count("__metadata__.author") == 1


def test_objects_that_a_file_cannot_contain_are_refused_unless_allowed(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "opt": {"cls": Unknown(), "n": 1}}, tmp_path / "a.pt")
    out = tmp_path / "b.safetensors"
    with pytest.raises(lw.EditError, match=r"opt\.cls.*Unknown.*drop it.*allow="):
        lw.edit(tmp_path / "a.pt", out)
    result = lw.edit(tmp_path / "a.pt", out, allow={"objects"})
    assert any("opt.cls" in note for note in result.notes)
    lw.edit(tmp_path / "a.pt", out, drop="opt.cls")
    with lw.open(out) as t:
        assert t["opt.n"] == 1


# -- optimizers ----------------------------------------------------------------------------------------------


def test_the_state_of_an_optimizer_follows_its_parameters(tmp_path: Path) -> None:
    first, second = run(), run()
    train(first, 2)
    train(second, 1)
    path = lw.save(first, tmp_path / "a.safetensors")
    lw.edit(path, tmp_path / "b.safetensors", rename={"model": "net"})
    lw.load({("net" if key == "model" else key): value for key, value in second.items()}, tmp_path / "b.safetensors")
    for old, new in zip(first["optimizer"].state.values(), second["optimizer"].state.values(), strict=True):
        assert all(torch.equal(torch.as_tensor(old[key]), torch.as_tensor(new[key])) for key in old)
    assert bits(first["model"]) == bits(second["model"])


def test_the_state_of_dropped_parameters_is_dropped(tmp_path: Path) -> None:
    first = run()
    train(first, 2)
    path = lw.save(first, tmp_path / "a.safetensors")
    lw.edit(path, tmp_path / "b.safetensors", drop="model.body.**")
    with lw.open(tmp_path / "b.safetensors") as t:
        assert not [path for path, _ in t.items() if "body" in str(path)]
        assert not [name for name in t["optimizer.param_groups.0.params"] if "body" in name]
        assert "optimizer.state.model.embed.weight.exp_avg" in t


def test_an_optimizer_is_extracted_without_its_model(tmp_path: Path) -> None:
    first, second = run(), run()
    train(first, 2)
    train(second, 1)
    path = lw.save(first, tmp_path / "a.safetensors")
    for number, options in enumerate(({"keep": "optimizer"}, {"drop": ["model", "scheduler", "rng", "step"]})):
        out = tmp_path / f"{number}.safetensors"
        lw.edit(path, out, **options)
        with lw.open(path) as old, lw.open(out) as new:
            assert lw.diff(old["optimizer"], new["optimizer"]).same
            assert new["optimizer.param_groups.0.params"] == old["optimizer.param_groups.0.params"]


def test_changing_the_shape_of_a_parameter_needs_its_optimizer_to_be_dropped(tmp_path: Path) -> None:
    first = run()
    train(first, 2)
    path = lw.save(first, tmp_path / "a.safetensors")
    with pytest.raises(lw.EditError, match=r"the state of 'optimizer' would not fit.*drop='optimizer\.\*\*'"):
        lw.edit(path, tmp_path / "b.safetensors", transpose="model.body.weight")
    lw.edit(path, tmp_path / "b.safetensors", transpose="model.body.weight", drop="optimizer.**")


def test_state_by_position_is_mentioned_if_weights_are_dropped_or_reshaped(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    for options in ({"drop": "model.bias"}, {"transpose": "model.weight"}):
        notes = lw.edit(tmp_path / "a.pt", tmp_path / "b.safetensors", **options).notes
        assert any("refers to weights by position" in note for note in notes)
    assert not lw.edit(tmp_path / "a.pt", tmp_path / "b.safetensors", cast="bfloat16").notes


# -- bad input -----------------------------------------------------------------------------------------------


def test_every_problem_is_listed_at_once_and_nothing_is_written(source: str, tmp_path: Path) -> None:
    out = tmp_path / "b.safetensors"
    with pytest.raises(lw.EditError) as caught:
        lw.edit(
            source,
            out,
            drop=["optimizer.**", "nothing"],
            cast={"count": "float16"},
            transpose="bert.norm.weight",
            resize={"bert.embed.weight": 11, "count": 3},
            split={"bert.embed": ["a", "b", "c"], "zzz": ["a", "b"]},
            fuse={"bert.0.attn.{qkv,x}": "y"},
            tie={"head.weight": "bert.embed.weight", "x": "nowhere"},
            untie="head.weight",
            rename={"zzz": "y"},
            delete="absent",
        )
    assert not out.exists()
    message = str(caught.value)
    for part in (
        "drop= 'optimizer.**' matches nothing in the source",
        "drop= 'nothing' matches nothing in the source",
        "cast= 'count' matches no floating-point array",
        "cannot transpose bert.norm.weight 6: it has 1 axis",
        "cannot resize bert.embed.weight 11×6: axis 0 already has size 11",
        "cannot resize count",
        "cannot split bert.embed.weight 11×6: axis 0 has 11 elements, which is not a multiple of 3",
        "split= 'zzz' matches nothing in the source",
        "cannot fuse bert.0.attn.qkv.weight: there is no part 'x' beside it",
        "cannot tie head.weight to bert.embed.weight: it is 3×6 float32, not 11×6 float32",
        "cannot tie x to nowhere, which is not among the arrays that are written",
        "untie= 'head.weight' matches no tied name",
        "rename= 'zzz' matches no name that is written",
        "delete= 'absent' matches nothing",
    ):
        assert part in message, part
    assert len(caught.value.problems) == len(message.splitlines()) - 1


def test_two_names_that_become_one_are_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(lw.EditError, match=r"bert.0.attn.qkv.weight and bert.1.attn.qkv.weight would be called"):
        lw.edit(source, tmp_path / "b.safetensors", rename=[(r"bert\.\d", "bert")])
    with pytest.raises(lw.EditError, match=r"two arrays would be called 'bert.norm.weight'"):
        lw.edit(
            source,
            tmp_path / "b.safetensors",
            split={"head": {"into": ["head", "other"], "axis": 1}, "bert.embed": {"into": ["norm", "x"], "axis": 1}},
        )


def test_an_output_that_is_also_an_input_is_refused(source: str, tmp_path: Path) -> None:
    before = Path(source).read_bytes()
    (tmp_path / "link.safetensors").symlink_to(source)
    for out in (source, tmp_path / "link.safetensors", tmp_path / "." / "a.safetensors"):
        with pytest.raises(lw.FileError, match="it is also a source"):
            lw.edit(source, out, drop="head.**")
    lw.edit(source, tmp_path / "shards.safetensors", shard_size=200)
    index = tmp_path / "shards.safetensors.index.json"
    shard = tmp_path / next(iter(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    for out in (tmp_path / "shards.safetensors", index, shard):
        with pytest.raises(lw.FileError, match="it is also a source"):
            lw.edit(index, out, drop="head.**")
    with pytest.raises(lw.FileError, match="is a shard of a checkpoint of that name, and would be removed"):
        lw.edit(shard, tmp_path / "shards.safetensors")
    assert lw.verify(index).ok
    for sources in (
        (source, f"file://{source}"),
        (f"file://{source}", source),
        (f"file://{source}", f"local://{source}"),
    ):
        with pytest.raises(lw.FileError, match="it is also a source"):
            lw.edit(*sources, drop="head.**")
    assert Path(source).read_bytes() == before


@pytest.mark.parametrize("format_name", ["safetensors", "dcp"])
def test_a_damaged_source_leaves_nothing_behind(format_name: str, tmp_path: Path) -> None:
    source = Path(lw.save({"w": torch.ones(9)}, tmp_path / "source.safetensors"))
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(lw.ChecksumError):
        lw.edit(source, tmp_path / "new", format=format_name)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"keep": 3}, "cannot select by int"),
        ({"cast": "int8"}, "cannot cast to 'int8'"),
        ({"cast": {"**": None}}, "takes a dtype"),
        ({"resize": {"head.weight": "x"}}, "resize= takes a size"),
        ({"resize": {"head.weight": {"size": 5, "fill": "nan"}}}, 'fill takes a number or "mean"'),
        ({"resize": {"head.weight": {"axis": 5}}}, "resize= needs a size"),
        ({"split": {"a": "qkv"}}, "split= takes a dict such as"),
        ({"split": {"a": {"into": ["q", "k"], "size": [1]}}}, "does not have the option 'size'"),
        ({"split": {"a": {"into": ["q", "k"], "sizes": [1]}}}, "one size for each of q, k"),
        ({"fuse": {"a.q": "b"}}, "fuse= takes a dict such as"),
        ({"tie": {"a": 1}}, "tie= takes a dict of names"),
        ({"set": {"x": object()}}, "leafwise does not save"),
        ({"delete": 4}, "delete= takes names"),
        ({"rename": "auto"}, "needs a model to compare with"),
        ({"allow": "missing"}, "allow= takes"),
        ({"ties": "twice"}, 'takes "once" or "copy"'),
        ({"copy": "a"}, "copy= needs formula="),
        ({"lora": 3}, "lora= takes the folder"),
        ({"transpose": {"head.weight": (0, 2)}}, "takes an order of axes"),
    ],
)
def test_arguments_that_are_not_valid_are_explained(
    source: str, tmp_path: Path, options: dict[str, Any], cause: str
) -> None:
    with pytest.raises(lw.Error) as caught:
        lw.edit(source, tmp_path / "b.safetensors", **options)
    assert cause in str(caught.value)
    assert not (tmp_path / "b.safetensors").exists()


def test_damaged_values_are_not_copied(tmp_path: Path) -> None:
    path = lw.save({"a": torch.randn(1000), "b": torch.randn(1000)}, tmp_path / "a.safetensors")
    data = bytearray(Path(path).read_bytes())
    data[-10] ^= 1
    Path(path).write_bytes(data)
    out = tmp_path / "b.safetensors"
    out.write_bytes(b"old")
    for options in ({}, {"transpose": {"b": (0,)}}, {"cast": "float64"}, {"resize": {"b": 5}}):
        with pytest.raises(lw.ChecksumError, match="b is damaged"):
            lw.edit(path, out, **options)
        assert out.read_bytes() == b"old"


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    torch.save({"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}}, tmp_path / "a.pt")
    with pytest.raises(lw.EditError, match=r"two arrays in the source are called 'a\.b'"):
        lw.edit(tmp_path / "a.pt", tmp_path / "b.safetensors")


def test_a_rename_of_what_is_not_written_is_refused(tmp_path: Path) -> None:
    save_file({"l.q.w": torch.ones(2, 2), "l.k.w": torch.ones(2, 2)}, tmp_path / "a.safetensors")
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    with pytest.raises(lw.EditError, match=r"rename= 'l\.q' matches no name that is written"):
        lw.edit(source, out, fuse={"l.{q,k}": "qk"}, rename={"l.q": "m"})
    lw.edit(source, out, fuse={"l.{q,k}": "qk"}, rename={"l.qk": "m"})
    assert load_file(out).keys() == {"m.w"}
    first = run()
    train(first, 1)
    path = lw.save(first, tmp_path / "run.safetensors")
    with pytest.raises(lw.EditError, match="the state of an optimizer has the names of its parameters"):
        lw.edit(path, out, rename={"optimizer.state.model.body": "optimizer.state.model.other"})


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_objects_of_a_distributed_checkpoint_are_refused_unless_allowed(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    objects = {"lr": 0.1, "made": datetime.date(2026, 1, 31)}
    dcp.save({"w": torch.ones(2), **objects}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    with pytest.raises(lw.EditError, match=r"cannot write made"):
        lw.edit(tmp_path / "dcp", tmp_path / "b.safetensors")
    result = lw.edit(tmp_path / "dcp", tmp_path / "b.safetensors", allow={"objects"})
    assert any("made" in note for note in result.notes)
    with lw.open(tmp_path / "b.safetensors") as t:
        assert t["lr"] == 0.1
        assert "made" not in t


def test_an_index_that_is_replaced_is_mentioned(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    lw.edit(source, out, shard_size=200)
    assert any("index of shards" in note for note in lw.edit(source, out).notes)
    assert not lw.edit(source, out).notes


def test_a_dry_run_reads_only_headers_and_writes_nothing(source: str, tmp_path: Path) -> None:
    with open(source, "r+b") as file:
        file.seek(-100, 2)
        file.write(b"x" * 100)  # values are not read, so their damage does not matter
    result = lw.edit(source, tmp_path / "b.safetensors", rename={"bert": "b"}, drop="head.**", dry_run=True)
    assert not result.written
    assert not (tmp_path / "b.safetensors").exists()
    assert [(step.verb, step.what) for step in result.steps] == [("drop", "head.**"), ("rename", "bert.** → b.**")]
    assert result.before.leaves == 8
    assert result.after.leaves == 7
    assert json.loads(json.dumps(result.json()))["steps"][0]["names"] == ["head.weight"]
    assert result.pandas().loc["b.norm.weight", "sources"] == ("bert.norm.weight",)
    assert "dry run" in result.text()


def test_live_models_and_parts_of_trees_are_edited_too(tmp_path: Path) -> None:
    model = Tied()
    lw.edit(model, tmp_path / "b.safetensors", cast="bfloat16", rename={"embed": "tokens"})
    with lw.open(tmp_path / "b.safetensors") as t:
        assert len(t.ties) == 1
        assert t["tokens.weight"].dtype == "bfloat16"
    torch.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "run.pt")
    with lw.open(tmp_path / "run.pt") as t:
        lw.edit(t["model"], tmp_path / "c.safetensors")
    assert "embed.weight" in load_file(tmp_path / "c.safetensors")


def test_an_npz_file_contains_each_name(tmp_path: Path) -> None:
    path, weights = tied_file(tmp_path)
    result = lw.edit(path, tmp_path / "b.npz")
    found = np.load(tmp_path / "b.npz")
    assert np.array_equal(found["head.weight"], weights["head.weight"].numpy())
    assert any("npz stores only arrays" in note for note in result.notes)
    with pytest.raises(lw.EditError, match="npz has no dtype bfloat16"):
        lw.edit(path, tmp_path / "c.npz", cast="bfloat16")


def test_a_rule_that_matches_nothing_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(lw.EditError) as caught:
        lw.edit({"a": torch.ones(3)}, tmp_path / "out.safetensors", cast={"zzz": "bfloat16"})
    assert caught.value.problems == ("cast= 'zzz' matches nothing in the source",)


def test_renames_that_differ_only_in_numbers_are_one_step(tmp_path: Path) -> None:
    state = {f"layer.{n}.attention.self.{name}": torch.ones(2) for n in range(3) for name in ("q", "k")}
    state |= {"down_0_attn.a": torch.ones(2), "down_0_attn.b": torch.ones(2)}
    rename = [(r"^layer\.(\d)\.attention\.self", r"blocks.\1.attn"), (r"^down_(\d)_", r"down.\1.")]
    edit = lw.edit(state, tmp_path / "out.safetensors", rename=rename, dry_run=True)
    assert [(step.what, len(step.names)) for step in edit.steps] == [
        ("layer.{0..2}.attention.self.** → blocks.{0..2}.attn.**", 6),
        ("down_0_attn.** → down.0.attn.**", 2),
    ]


def test_a_step_shows_the_bytes_it_adds_and_counts_the_names_of_tied_leaves(tmp_path: Path) -> None:
    weight = torch.ones(4, 2)
    model = {"embed": weight, "head": weight, "norm": torch.ones(2)}
    edit = lw.edit(model, tmp_path / "a.safetensors", resize={"embed": 6}, rename=[("^", "model.")], dry_run=True)
    assert edit.text().splitlines()[:2] == [
        "resize  4×2 → 6×2, filled with 0   1 leaf  +16 B",
        "rename  ** → model.**             3 names",
    ]
