"""`lw.plan`: how names are matched, and what the plan says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoint.models import Tied
from torch import nn

import leafwise as lw
from leafwise.core.pairing.row_matching import match_names

# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("front", "behind"),
    [
        ("module.", ""),
        ("_orig_mod.", ""),
        ("model.", ""),
        ("module._orig_mod.", ""),
        ("_orig_mod.module.model.", ""),
        ("", "model."),
        ("", "module._orig_mod."),
        ("module.model.", "model."),
        ("state_dict.model.", ""),
        ("base_model.model.", ""),
    ],
)
def test_well_known_prefixes_are_left_off_also_stacked_and_on_either_side(front: str, behind: str) -> None:
    names = ["embed.weight", "layers.0.weight", "layers.0.bias"]
    found = match_names([behind + name for name in names], [front + name for name in names])
    assert found.sources == {0: 0, 1: 1, 2: 2}
    (prefix,) = found.prefixes
    assert prefix.times == 3
    shared = "model." if front.endswith("model.") and behind == "model." else ""
    assert (prefix.source, prefix.target) in {
        (front, behind),
        (front.removesuffix(shared), behind.removesuffix(shared)),
    }


def test_wrappers_in_the_middle_of_names_are_left_off_and_two_candidates_are_not_guessed() -> None:
    found = match_names(["a.b.weight", "head.weight"], ["a._orig_mod.b.weight", "model.head.weight"])
    assert found.sources == {0: 0, 1: 1}
    assert match_names(["x.weight"], ["module.x.weight", "model.x.weight"]).sources == {}  # two candidates: no guess
    assert match_names(["module.x.weight", "model.x.weight"], ["x.weight"]).sources == {}
    assert match_names(["module.weight"], ["module.weight"]).prefixes == []


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Inner()
        self.lin = nn.Linear(2, 2)


def test_a_prefix_of_all_names_is_seen_before_any_is_matched() -> None:
    outer = Outer()
    plan = lw.plan(Outer(), {f"model.{name}": value for name, value in outer.state_dict().items()})
    assert plan.holds
    assert [prefix.describe() for prefix in plan.prefixes] == ['prefix "model." removed from 4 names']
    loaded = lw.load(Outer(), {f"model.{name}": value for name, value in outer.state_dict().items()})
    assert torch.equal(loaded.lin.weight, outer.lin.weight)
    assert torch.equal(loaded.model.lin.weight, outer.model.lin.weight)


@pytest.mark.parametrize("name", [".a", "..a", "a.", "a..b", ".", ""])
def test_names_with_empty_entries_match_only_themselves(name: str, tmp_path: Path) -> None:
    save_file({name: torch.ones(2)}, tmp_path / "a.safetensors")
    for other in ({"a": torch.zeros(2)}, {"a": {"b": torch.zeros(2)}}):
        with pytest.raises(lw.LoadError, match="missing"):
            lw.load(other, tmp_path / "a.safetensors")
    assert lw.load({name: torch.zeros(2)}, tmp_path / "a.safetensors")[name].all()
    save_file({name: torch.ones(2), "a.b": torch.ones(1)}, tmp_path / "b.safetensors")
    target = lw.load({name: torch.zeros(2), "a.b": torch.zeros(1)}, tmp_path / "b.safetensors")
    assert all(value.all() for value in target.values())


def test_a_rename_may_be_a_mapping_patterns_or_a_function() -> None:
    targets = ["body.0.weight", "head.weight"]
    sources = ["enc.0.weight", "cls.weight"]
    for rename in (
        {"enc": "body", "cls": "head"},
        {"enc.0.weight": "body.0.weight", "cls.weight": "head.weight"},
        [(r"^enc\.", "body."), ("cls", "head")],
        [(re.compile(r"^enc\.(\d+)"), r"body.\1"), ("^cls", "head")],
        lambda name: {"enc": "body", "cls": "head"}[name.partition(".")[0]] + "." + name.partition(".")[2],
    ):
        assert match_names(targets, sources, rename).sources == {0: 0, 1: 1}
    found = match_names(targets, [*sources, "ema.x"], {"enc": "body", "cls": "head", "ema": None, "no": "such"})
    assert found.left_out == [2]
    assert found.idle == ["no"]
    assert match_names(["weight"], ["a.weight"], {"a": ""}).sources == {0: 0}
    assert match_names(["b.x", "c.x"], ["a.x", "a.b.x"], {"a": "b", "a.b": "c"}).sources == {0: 0, 1: 1}


# -- the plan ----------------------------------------------------------------------------------------------


def test_a_rename_that_gives_two_leaves_the_same_name_is_an_error() -> None:
    source = {"old": torch.zeros(2, 2), "new": torch.ones(2, 2)}
    with pytest.raises(lw.QueryError, match=r"'old' and 'new' would both become 'weight'"):
        lw.plan(nn.Linear(2, 2, bias=False), source, rename={"old": "weight", "new": "weight"})


def test_a_plan_reads_no_values_and_changes_nothing(tmp_path: Path) -> None:
    path = Path(lw.save(Tied(), tmp_path / "a.safetensors"))
    with path.open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\xff\xff\xff\xff")  # damaged, but the plan reads no values
    model = Tied()
    before = model.body.weight.detach().clone()
    plan = lw.plan(model, path)
    assert plan.holds
    assert plan.coverage == 1
    assert torch.equal(model.body.weight, before)
    with torch.device("meta"):
        plan = lw.plan(Tied(), Tied())
    assert [problem.name for problem in plan.problems] == ["scratch"]  # a non-persistent buffer on meta


def test_the_table_and_the_data_say_the_same() -> None:
    state: dict[str, Any] = {f"module.{name}": value for name, value in Tied().state_dict().items()}
    state["module.body.weight"] = torch.ones(3, 3)
    state["module.body.bias"] = state["module.body.bias"].bfloat16()
    state["extra"] = torch.ones(2)
    del state["module.norm.bias"]
    plan = lw.plan(Tied(), state, cast=True, allow={"missing"})
    text, data = plan.text(), json.loads(json.dumps(plan.json()))
    assert not plan.holds
    assert not data["holds"]
    for part in (
        "module.embed.weight → embed.weight",
        "renamed, cast",
        "tied",
        "shape: body.weight is 4×4 in the model but 3×3 in the source (module.body.weight)",
        "missing (allowed): norm.bias (4 float32) is in the model but not in the source",
        "unexpected: extra (2 float32) is in the source but not in the model",
        'prefix "module." removed from',
        "cannot be loaded: 1 shape, 1 unexpected",
    ):
        assert part in text, part
    assert {row["kind"] for row in data["problems"]} == {"shape", "unexpected"}
    assert data["allowed"][0]["name"] == "norm.bias"
    assert data["prefixes"][0]["source"] == "module."
    assert 0 < data["coverage"] < 1
    by_target = {row["target"]: row for row in data["leaves"]}
    assert by_target["body.bias"]["how"] == ["renamed", "cast"]
    assert by_target["embed.weight"]["source"] == "module.embed.weight"
    assert "<table" in plan._repr_html_() or "<div" in plan._repr_html_()
    assert plan.missing == ["norm.bias"]
    assert f"{plan}" == text


def test_many_leaves_are_folded() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(60)])
    plan = lw.plan(model, model.state_dict())
    assert plan.text().startswith("all leaves  (120 leaves)  float32")
    assert "59.bias" in plan.text(full=True)
    empty = lw.plan(model, {"0.weight": torch.ones(2, 2)})
    assert "missing: {1..59}.* (118 leaves) are in the model but not in the source" in empty.text()
    assert "missing: 59.bias (2 float32) is in the model but not in the source" in empty.text(full=True)
    with pytest.raises(lw.LoadError, match=r"missing: \{1\.\.59\}\.\* \(118 leaves\) are in the model"):
        lw.load(model, {"0.weight": torch.ones(2, 2)})


def test_auto_renames_say_what_they_did() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    source = {
        "enc.weight": torch.ones(3, 2),
        "enc.bias": torch.ones(3),
        "out.weight": torch.ones(4, 3),
        "out.bias": torch.ones(4),
    }
    plan = lw.plan(model, source, rename="auto")
    assert plan.holds
    lines = plan.text().splitlines()
    assert lines[0] == "enc.weight → 0.weight  3×2  float32  renamed  no other leaf has this shape"
    assert not [line for line in lines if line.startswith("renamed:")], "the table says it"
    loaded = lw.load(model, source, rename="auto")
    assert all((value == 1).all() for value in loaded.parameters())
    proposed = lw.plan(model, source)
    assert not proposed.holds
    assert "would rename: enc.weight → 0.weight" in proposed.text()
    assert all(proposal.certain for proposal in proposed.proposals)
    assert proposed.renames == plan.renames
    assert lw.plan(model, source, rename=proposed.renames).holds


def test_single_letters_are_matched_with_words_in_proposed_renames() -> None:
    def model(*names: str) -> nn.Module:
        return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in names})

    plan = lw.plan(model("q_proj", "k_proj", "v_proj"), model("attn_v", "attn_k", "attn_q"), rename="auto")
    renamed = dict(pair for proposal in plan.applied for pair in proposal.pairs)
    assert renamed == {f"attn_{letter}.weight": f"{letter}_proj.weight" for letter in "qkv"}


def norms(*names: str) -> nn.Module:
    return nn.ModuleDict({"embed": nn.Embedding(7, 4), **{name: nn.LayerNorm(4) for name in names}})


def test_what_could_be_swapped_is_listed_and_not_loaded() -> None:
    source, model = norms("norm1", "norm2"), norms("before", "after")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = lw.plan(model, source, rename="auto")
    assert not plan.holds
    assert sorted(plan.missing) == ["after.bias", "after.weight", "before.bias", "before.weight"]
    assert plan.unexpected == ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"]
    assert plan.applied == plan.renames == []
    assert plan.notes == ['4 renames are not certain, so rename="auto" did not apply them']
    for proposal in plan.proposals:
        (old, new), part = proposal.pairs[0], proposal.pairs[0][0].rpartition(".")[2]
        assert proposal.sources == (f"norm1.{part}", f"norm2.{part}")
        assert proposal.targets == (f"before.{part}", f"after.{part}")
        assert re.sub(proposal.pattern, proposal.replacement, old) == new
    text = plan.text()
    assert text.count("\npossible rename: ") == 4
    assert "these 2 have the same shape, so they may be swapped" in text
    listed = text[text.index("4 renames are not certain") : text.index("1 of 5 leaves")]
    assert max(map(len, listed.splitlines())) <= 80
    data = json.loads(json.dumps(plan.json()))["proposals"]
    assert [one["certain"] for one in data] == [False] * 4
    assert data[0]["targets"] == ["before.weight", "after.weight"]
    assert "possible rename: " in plan._repr_html_()
    with pytest.raises(lw.LoadError, match="pass the right ones as rename=") as error:
        lw.load(model, source, rename="auto")
    assert "not certain" in str(error.value)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    loaded = lw.load(model, source, rename={"norm1": "before", "norm2": "after"})
    assert torch.equal(loaded["after"].weight, source["norm2"].weight)


def test_swapped_names_are_loaded_by_their_names() -> None:
    source = norms("norm1", "norm2")
    swapped = {
        name.replace("norm1", "x").replace("norm2", "norm1").replace("x", "norm2"): value
        for name, value in source.state_dict().items()
    }
    plan = lw.plan(norms("norm1", "norm2"), swapped, rename="auto")
    assert plan.holds
    assert plan.applied == plan.proposals == []


def test_what_is_allowed_stays_as_it_is_where_a_rename_is_not_certain() -> None:
    source, model = norms("norm1", "norm2"), norms("before", "after")
    nn.init.constant_(model["before"].weight, 7.0)
    lw.load(model, source, rename="auto", allow={"missing", "unexpected"})
    assert (model["before"].weight == 7).all()


def test_a_tied_leaf_needs_one_name_only() -> None:
    def build(embed: str, head: str) -> nn.Module:
        model = nn.ModuleDict({embed: nn.Embedding(7, 4), head: nn.Linear(4, 7, bias=False)})
        model[head].weight = model[embed].weight
        return model

    source = build("tokens", "out")
    for given in (source, {"tokens.weight": source["tokens"].weight}):
        loaded = lw.load(build("embed", "head"), given, rename="auto")
        assert torch.equal(loaded["head"].weight, source["out"].weight)
        assert loaded["head"].weight is loaded["embed"].weight


def _tied(embed: str, head: str) -> nn.ModuleDict:
    model = nn.ModuleDict({embed: nn.Embedding(7, 4), head: nn.Linear(4, 7, bias=False)})
    model[head].weight = model[embed].weight
    return model


def test_another_name_of_a_leaf_that_fills_a_tied_leaf_is_not_proposed_for_a_third() -> None:
    model = _tied("embed", "head")
    model["extra"] = nn.Linear(4, 7, bias=False)  # which the source does not have
    plan = lw.plan(model, _tied("embed", "lm_head"), rename="auto")
    assert (plan.missing, plan.applied, plan.proposals) == (["extra.weight"], [], [])


def test_a_tied_source_fills_two_leaves_one_of_which_has_another_name() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
    source = _tied("embed", "lm_head")
    loaded = lw.load(model, source, rename="auto", ties="ignore")
    assert torch.equal(loaded["head"].weight, source["embed"].weight)
    assert loaded["head"].weight is not loaded["embed"].weight


def test_a_leaf_of_which_only_a_slice_has_a_partner_is_still_renamed() -> None:
    table = torch.zeros(4, 3)
    source = {"matrix": torch.ones(4, 3), "part": torch.ones(2, 3)}
    loaded = lw.load({"table": table, "part": table[:2]}, source, rename="auto")
    assert torch.equal(loaded["table"], torch.ones(4, 3))


def test_a_buffer_is_loaded_by_a_name_under_which_it_is_not_persistent() -> None:
    model = nn.ModuleDict({"a": nn.Module(), "b": nn.Module()})
    mask = torch.zeros(3)
    model["a"].register_buffer("mask", mask)
    model["b"].register_buffer("mask", mask, persistent=False)
    for name in ("a.mask", "b.mask"):
        mask.zero_()
        lw.load(model, {name: torch.ones(3)})
        assert mask.tolist() == [1, 1, 1]


def test_leaves_with_different_kinds_of_numbers_are_not_matched() -> None:
    model, source = nn.Module(), nn.Module()
    model.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
    model.scale = nn.Parameter(torch.zeros(3))
    source.gain = nn.Parameter(torch.ones(3))
    source.register_buffer("count", torch.ones(3, dtype=torch.int64))
    loaded = lw.load(model, source, rename="auto")
    assert loaded.steps.tolist() == [1, 1, 1]
    for other in (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.cfloat)):
        plan = lw.plan({"scale": torch.zeros(3)}, {"scale": other}, cast=True)
        assert [problem.kind for problem in plan.problems] == ["dtype", "nothing"]


def test_a_checkpoint_of_several_things_says_which_to_take(tmp_path: Path) -> None:
    path = lw.save({"model": nn.Linear(2, 2), "other": nn.Linear(3, 3)}, tmp_path / "a.safetensors")
    with pytest.raises(lw.LoadError, match=r'lw.load\(model, lw.open\(path\)\["model"\]\)'):
        lw.load(nn.Linear(2, 2), path)
    assert lw.load(nn.Linear(2, 2), lw.open(path)["model"])


def test_the_commands_plan_and_verify_print_what_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leafwise.cli import main

    path = lw.save(nn.Linear(3, 2), tmp_path / "a.safetensors")
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build(): return nn.Linear(3, 2)\n"
        "def other(): return nn.Sequential(nn.Linear(3, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["plan", path, "mine:build"]) == 0
    assert "can be loaded" in capsys.readouterr().out
    assert main(["plan", path, "mine:other"]) == 1
    assert "cannot be loaded: 2 missing, 2 unexpected" in capsys.readouterr().out
    assert main(["plan", path, "mine:other", "--rename", "^=0.", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["holds"]
    assert main(["plan", path, "mine:other", "--auto", "--full"]) == 0
    assert 'weight → 0.weight  2×3  float32  renamed  only "0" is added' in capsys.readouterr().out
    assert main(["plan", path, "mine:other", "--auto", "--rename", "a=b"]) == 1
    assert main(["plan", path, path]) == 0
    assert main(["plan", str(tmp_path / "no"), "mine:build"]) == 1
    capsys.readouterr()
    assert main(["verify", path]) == 0
    assert "2 leaves, 32 B: every checksum matches" in capsys.readouterr().out
    assert main(["verify", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "leaves": 2,
        "bytes": 32,
        "unchecked": 0,
        "without_checksums": [],
        "bound": 0,
        "unbound": 0,
    }
    data = bytearray(Path(path).read_bytes())
    data[-1] ^= 1
    Path(path).write_bytes(data)
    assert main(["verify", path]) == 1
    assert "bias is damaged" in capsys.readouterr().err
    assert main(["verify", path, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["damaged"] == ["bias"]
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert main(["verify", str(tmp_path / "a.pt")]) == 1
    assert "1 leaf without checksums (PyTorch, before 1.6): nothing could be verified" in capsys.readouterr().err


def test_verify_takes_files_only() -> None:
    for wrong in (nn.Linear(2, 2), lw.tree(nn.Linear(2, 2)), 5, None):
        with pytest.raises(lw.FileError, match=r"takes a file"):
            lw.verify(wrong)  # type: ignore[arg-type]
