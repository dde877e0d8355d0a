"""Arithmetic between checkpoints, compared with doing it in torch: averages, interpolation, task vectors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import leafwise as lw
from leafwise.checkpoint.editing.formulas import factors_of


def state(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "a.weight": torch.randn(300, 500).to(dtype),
        "a.bias": torch.randn(7).to(dtype),
        "scale": torch.randn(()).to(dtype),
        "empty": torch.zeros(0, 3).to(dtype),
        "positions": torch.arange(9),
    }


def saved(tmp_path: Path, name: str, tensors: dict[str, torch.Tensor]) -> str:
    path = tmp_path / f"{name}.safetensors"
    save_file(tensors, path)
    return str(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("formula", "compute"),
    [
        ("average", lambda a, b, c: (a + b + c) / 3),
        ("a + 0.5 * (b - a) + 0 * c", lambda a, b, c: a + 0.5 * (b - a)),
        ("0.7 * a + 0.2 * b + 0.1 * c", lambda a, b, c: 0.7 * a + 0.2 * b + 0.1 * c),
        ("-(a - b) / 2 + c", lambda a, b, c: (b - a) / 2 + c),
    ],
)
def test_a_formula_computes_what_torch_computes_rounded_once(
    formula: str, compute: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    states = [state(seed, dtype) for seed in range(3)]
    paths = [saved(tmp_path, f"s{number}", tensors) for number, tensors in enumerate(states)]
    out = tmp_path / "out.safetensors"
    lw.edit(paths, out, formula=formula)
    lw.verify(out)
    computed = load_file(out)
    assert computed.keys() == states[0].keys()
    for name, value in computed.items():
        if name == "positions":
            assert torch.equal(value, torch.arange(9))
            continue
        exact = compute(*(tensors[name].double() for tensors in states))
        assert value.dtype == dtype
        # The nearest number of the dtype, or, because the sums in torch round, too, its neighbor.
        assert torch.allclose(
            value.double(), exact.to(dtype).double(), rtol=2 * torch.finfo(dtype).eps, atol=_atol(dtype)
        )


def _atol(dtype: torch.dtype) -> float:
    """The distance between subnormal numbers, and what sums of doubles lose."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps + 1e-14


def test_a_sum_that_is_cast_is_rounded_once(tmp_path: Path) -> None:
    a, b = torch.tensor([1 + 2.0**-8]), torch.tensor([2.0**-30])
    paths = [saved(tmp_path, "a", {"w": a}), saved(tmp_path, "b", {"w": b})]
    lw.edit(paths, tmp_path / "out.safetensors", formula="a + b", cast="bfloat16")
    assert load_file(tmp_path / "out.safetensors")["w"].item() == 1.0078125


def test_named_sources_and_task_vectors(tmp_path: Path) -> None:
    base, tuned = state(0), state(1)
    sources = {"base": saved(tmp_path, "base", base), "tuned": saved(tmp_path, "tuned", tuned)}
    out = tmp_path / "out.safetensors"
    result = lw.edit(sources, out, formula="base + 0.5 * (tuned - base)", cast="bfloat16")
    expected = (base["a.weight"].double() * 0.5 + tuned["a.weight"].double() * 0.5).float().bfloat16()
    assert torch.equal(load_file(out)["a.weight"], expected)
    assert result.steps[0].verb == "compute"


def test_the_formula_itself_is_checked() -> None:
    assert factors_of("2 * (a + b) / 4 - b", ["a", "b"]) == [0.5, -0.5]
    for formula, cause in (
        ("a + c", "'c' in the formula 'a + c' is not a source; the sources are a, b"),
        ("a", "does not use b"),
        ("a * b", "multiplies checkpoints with each other"),
        ("a / b", "divides by a checkpoint"),
        ("a / 0 + b", "divides by zero"),
        ("a + b + 1", "adds the number 1 to every value"),
        ("a ** 2 + b", "cannot compute 'a ** 2'"),
        ("f(a) + b", "cannot compute 'f(a)'"),
        ("__import__('os').system('x')", "cannot compute"),
        ("a +", "cannot read the formula"),
        ("1e308 * 10 * a + b", "the factor of a"),
        ("(" * 5000 + "a", "cannot read the formula"),
    ):
        with pytest.raises(lw.QueryError) as caught:
            factors_of(formula, ["a", "b"])
        assert cause in str(caught.value), formula


def test_trees_that_do_not_match_are_refused_with_every_mismatch(tmp_path: Path) -> None:
    first, second, third = state(0), state(1), state(2)
    del second["a.bias"]
    second["extra"] = torch.ones(2)
    third["a.weight"] = torch.ones(300, 501)
    third["scale"] = torch.tensor(3)
    paths = [saved(tmp_path, name, tensors) for name, tensors in (("x", first), ("y", second), ("z", third))]
    out = tmp_path / "out.safetensors"
    with pytest.raises(lw.EditError) as caught:
        lw.edit(paths, out, formula="average")
    assert not out.exists()
    assert sorted(caught.value.problems) == [
        "a.bias is in a but not in b",
        "a.weight has different shapes: 300×500 in a, 300×500 in b, 300×501 in c",
        "extra is in b but not in a, c",
        "scale has different kinds of numbers: float32 in a, float32 in b, int64 in c",
    ]
    lw.edit(paths, out, formula="average", keep="positions")
    assert load_file(out).keys() == {"positions"}


def test_similar_mismatches_share_a_line_of_the_message_and_are_all_in_problems(tmp_path: Path) -> None:
    first = {f"layers.{n}.{name}": torch.ones(2) for n in range(4) for name in ("q", "k")} | {"head": torch.ones(3)}
    second = {f"layers.{n}.q": torch.ones(5) for n in range(4)} | {f"blocks.{n}": torch.ones(1) for n in range(50)}
    paths = [saved(tmp_path, name, tensors) for name, tensors in (("x", first), ("y", second))]
    with pytest.raises(lw.EditError) as caught:
        lw.edit(paths, tmp_path / "out.safetensors", formula="average")
    assert sorted(str(caught.value).splitlines()[1:]) == [
        "  blocks.* (50 leaves) are in b but not in a",
        "  head is in a but not in b",
        "  layers.{0..3}.k (4 leaves) are in a but not in b",
        "  layers.{0..3}.q (4 leaves) have different shapes: 2 in a, 5 in b",
    ]
    assert len(caught.value.problems) == 1 + 4 + 4 + 50


def test_integers_that_differ_are_refused_unless_they_are_copied(tmp_path: Path) -> None:
    paths = []
    for seed in range(2):
        tensors = state(seed)
        tensors["norm.num_batches_tracked"] = torch.tensor(seed)
        paths.append(saved(tmp_path, f"s{seed}", tensors))
    out = tmp_path / "out.safetensors"
    with pytest.raises(lw.EditError, match="num_batches_tracked contains int64 numbers that differ"):
        lw.edit(paths, out, formula="average")
    assert not out.exists()
    lw.edit(paths, out, formula="average", copy="**.num_batches_tracked")
    assert load_file(out)["norm.num_batches_tracked"] == 0


def test_ties_are_kept_if_all_sources_have_them(tmp_path: Path) -> None:
    shared, other, apart = (torch.randn(4, 3) for _ in range(3))
    torch.save({"embed": shared, "head": shared}, tmp_path / "a.pt")
    torch.save({"embed": other, "head": other}, tmp_path / "b.pt")
    torch.save({"embed": other, "head": apart}, tmp_path / "c.pt")
    out = tmp_path / "out.safetensors"
    lw.edit([tmp_path / "a.pt", tmp_path / "b.pt"], out, formula="average")
    assert load_file(out).keys() == {"embed"}
    with lw.open(out) as t:
        assert len(t.ties) == 1
    result = lw.edit([tmp_path / "a.pt", tmp_path / "c.pt"], out, formula="average")
    assert any("not tied in every source" in note for note in result.notes)
    assert torch.allclose(load_file(out)["head"], (shared + apart) / 2)


def test_a_sum_that_does_not_fit_is_an_error_that_names_the_leaf(tmp_path: Path) -> None:
    paths = [saved(tmp_path, name, {"fine": torch.ones(2), "w": torch.full((9,), 6e4).half()}) for name in "ab"]
    out = tmp_path / "out.safetensors"
    with pytest.raises(lw.EditError, match=r"cannot write w: .*65504.*saturate=True"):
        lw.edit(paths, out, formula="a + b")
    assert not out.exists()
    lw.edit(paths, out, formula="a + b", saturate=True)
    assert load_file(out)["w"].tolist() == [65504.0] * 9


def test_nan_and_infinities_propagate(tmp_path: Path) -> None:
    a = torch.tensor([1.0, float("nan"), float("inf"), float("inf")])
    b = torch.tensor([1.0, 2.0, 3.0, float("-inf")])
    out = tmp_path / "out.safetensors"
    lw.edit([saved(tmp_path, "a", {"w": a}), saved(tmp_path, "b", {"w": b})], out, formula="average")
    assert torch.equal(load_file(out)["w"].isnan(), torch.tensor([False, True, False, True]))
    assert load_file(out)["w"][2] == float("inf")


def test_a_source_may_be_given_in_many_forms(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    torch.save({"state": model.state_dict()}, tmp_path / "a.pt")
    path = lw.save(model, tmp_path / "m.safetensors", shard_size=8)
    out = tmp_path / "out.safetensors"
    with lw.open(tmp_path / "a.pt") as t:
        lw.edit({"live": model, "shards": path, "part": t["state"]}, out, formula="live - 2 * shards + part")
    assert all((value == 0).all() for value in load_file(out).values())


def test_several_sources_need_a_formula(tmp_path: Path) -> None:
    path = saved(tmp_path, "a", state(0))
    with pytest.raises(lw.QueryError, match="several sources need formula="):
        lw.edit([path, path], tmp_path / "out.safetensors")
    with pytest.raises(lw.QueryError, match="names that can be used in it"):
        lw.edit({"my base": path}, tmp_path / "out.safetensors", formula="average")
    with pytest.raises(lw.FileError, match="it is also a source"):
        lw.edit([path, saved(tmp_path, "b", state(1))], tmp_path / "b.safetensors", formula="average")
