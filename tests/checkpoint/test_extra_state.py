"""State that a module or an object keeps outside of its parameters and buffers is saved and handed back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw


class Extra(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.value = value

    def get_extra_state(self) -> Any:
        value = self.value
        return value.clone() if isinstance(value, torch.Tensor) else {"value": value, "array": torch.full((2,), value)}

    def set_extra_state(self, state: Any) -> None:
        if isinstance(state, dict):
            assert (state["array"] == state["value"]).all()
            state = state["value"]
        self.value = state


def test_extra_state_is_saved_and_handed_back(tmp_path: Path) -> None:
    path = lw.save(nn.Sequential(Extra(7), Extra(torch.tensor([1.0, 2.0]))), tmp_path / "a.safetensors")
    loaded = lw.load(nn.Sequential(Extra(0), Extra(torch.zeros(2))), path)
    assert loaded[0].value == 7
    assert loaded[1].value.tolist() == [1, 2]


class Grows(nn.Module):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
        self.state = state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def wrapped_in(name: str, module: nn.Module) -> nn.Module:
    return nn.ModuleDict({name: module})


@pytest.mark.parametrize("now", [{}, None, {"classes": 0}])
def test_extra_state_that_grew_comes_back(now: Any, tmp_path: Path) -> None:
    path = lw.save(Grows({"classes": 7}), tmp_path / "a.safetensors")
    assert lw.load(Grows(now), path).state == {"classes": 7}
    grown = lw.save(wrapped_in("m", Grows({"classes": 7, "more": 8})), tmp_path / "b.safetensors")
    loaded: Any = lw.load(wrapped_in("m", Grows(now)), grown)
    assert loaded.m.state == {"classes": 7, "more": 8}


def test_extra_state_below_a_prefix_and_copies_of_a_state_dict_come_back(tmp_path: Path) -> None:
    inner = Grows({"v": 5})
    module: Any = nn.Module()
    module.module = inner
    assert lw.load(Grows({"v": 0}), lw.save(module, tmp_path / "a.safetensors")).state == {"v": 5}
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    best = {name: torch.zeros_like(value) for name, value in other.state_dict().items()}
    path = lw.save({"model": model, "best": model.state_dict()}, tmp_path / "b.safetensors")
    lw.load({"model": other, "best": best}, path)
    assert torch.equal(best["weight"], model.weight)


class Meter:
    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "bad" in state["counts"]:
            raise ValueError("bad version")
        self.counts = state["counts"]


def test_state_of_objects_that_grew_comes_back_and_what_they_raise_is_a_load_error(tmp_path: Path) -> None:
    state = {"m": nn.Linear(2, 2), "meter": Meter({"seen": 3})}
    path = lw.save(state, tmp_path / "a.safetensors")
    meter = Meter({})
    lw.load({"m": nn.Linear(2, 2), "meter": meter}, path)
    assert meter.counts == {"seen": 3}
    bad = lw.save({"m": nn.Linear(2, 2), "meter": Meter({"bad": 1})}, tmp_path / "b.safetensors")
    with pytest.raises(lw.LoadError, match=r"ValueError after the values were loaded: bad version; the model is"):
        lw.load({"m": nn.Linear(2, 2), "meter": Meter({"bad": 0})}, bad)
