"""One load from several files, each for a part of the target: either all of them are loaded or none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw


def stepped(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "step": seed}


def moments(run: dict[str, Any]) -> list[torch.Tensor]:
    return [state["exp_avg"] for state in run["optimizer"].state.values()]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = zip(
        [*one["model"].parameters(), *moments(one)], [*other["model"].parameters(), *moments(other)], strict=True
    )
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("how", ["alone", "by PyTorch", "in two runs", "as trees"])
def test_a_model_and_its_optimizer_are_loaded_from_two_files(how: str, tmp_path: Path) -> None:
    run = stepped(0)
    sources: dict[str, Any] = {"model": tmp_path / "m", "optimizer": tmp_path / "o"}
    if how == "by PyTorch":
        torch.save(run["model"].state_dict(), sources["model"])
        torch.save(run["optimizer"].state_dict(), sources["optimizer"])
    elif how == "alone":
        lw.save(run["model"], sources["model"])
        lw.save(run["optimizer"], sources["optimizer"])
    else:
        lw.save(run, sources["model"])
        lw.save(run, sources["optimizer"])
    if how == "as trees":
        sources = {name: lw.open(path)[name] for name, path in sources.items()}
    other = stepped(1)
    with pytest.raises(lw.LoadError, match="step is in the model, but no file was given for it"):
        lw.load(other, sources)
    assert not same(other, run)
    loaded = lw.load(other, sources, allow={"missing"})
    assert loaded is other
    assert same(loaded, run)
    assert loaded["step"] == 1


def test_an_optimizer_of_a_model_on_meta_steps_what_was_loaded(tmp_path: Path) -> None:
    run = stepped(0)
    paths = {"model": lw.save(run["model"], tmp_path / "m"), "optimizer": lw.save(run["optimizer"], tmp_path / "o")}
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    fresh = lw.load({"model": model, "optimizer": torch.optim.AdamW(model.parameters())}, paths)
    assert same(fresh, run)
    assert fresh["optimizer"].param_groups[0]["params"] == list(fresh["model"].parameters())


def test_if_one_file_does_not_fit_nothing_is_loaded(tmp_path: Path) -> None:
    run = stepped(0)
    model = lw.save(run["model"], tmp_path / "m")
    other = lw.save(nn.Linear(2, 2), tmp_path / "o")
    target = {name: part for name, part in stepped(1).items() if name != "step"}
    before = [value.clone() for value in target["model"].parameters()]
    with pytest.raises(lw.LoadError, match="there is no optimizer in the checkpoint"):
        lw.load(target, {"model": model, "optimizer": other})
    damaged = Path(lw.save(run["optimizer"], tmp_path / "d"))
    data = bytearray(damaged.read_bytes())
    data[-3] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(lw.ChecksumError):
        lw.load(target, {"model": model, "optimizer": damaged})
    assert all(torch.equal(a, b) for a, b in zip(before, target["model"].parameters(), strict=True))


def test_a_model_with_a_part_of_its_own_name_is_taken_whole(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.ModuleDict({"model": nn.Linear(2, 2), "head": nn.Linear(2, 2)})

    one = build()
    loaded = lw.load({"model": build()}, {"model": lw.save(one, tmp_path / "m")})
    assert lw.diff(loaded["model"], one).same


def test_one_leaf_cannot_get_the_values_of_two_files(tmp_path: Path) -> None:
    model, one, other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    first, second = lw.save(one, tmp_path / "a"), lw.save(other, tmp_path / "b")
    before = model.weight.clone()
    with pytest.raises(lw.LoadError, match=r"a\.weight and b\.weight are the same leaf, but two files have different"):
        lw.load({"a": model, "b": model}, {"a": first, "b": second})
    assert torch.equal(model.weight, before)
    lw.load({"a": model, "b": model}, {"a": first, "b": first})
    assert torch.equal(model.weight, one.weight)


def test_names_that_the_target_does_not_have_are_an_error(tmp_path: Path) -> None:
    path = lw.save(nn.Linear(2, 2), tmp_path / "m")
    with pytest.raises(lw.QueryError, match="there is no 'modle' in the model"):
        lw.load({"model": nn.Linear(2, 2)}, {"modle": path})
    with pytest.raises(lw.QueryError, match=r'takes one source, not a dict of files; call lw.plan\(model\["NAME"\]'):
        lw.plan({"model": nn.Linear(2, 2)}, {"model": path})
