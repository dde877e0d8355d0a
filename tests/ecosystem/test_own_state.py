"""Modules that write or read their own state dict, with torchmetrics and with hooks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw

pytestmark = pytest.mark.filterwarnings("ignore")


def measured(torchmetrics: Any) -> nn.Module:
    model = nn.Module()
    model.net = nn.Linear(2, 2)
    model.mean = torchmetrics.MeanMetric()
    model.best = torchmetrics.MinMetric()
    for metric in (model.mean, model.best):
        metric.persistent(True)
    return model


def test_persistent_metrics_of_torchmetrics_are_restored(tmp_path: Path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    model = measured(torchmetrics)
    for value in (2.0, 6.0):
        model.mean.update(value)
        model.best.update(value)
    path = lw.save(model, tmp_path / "a.safetensors")
    assert {"mean.mean_value", "mean.weight", "best.min_value"} <= {str(name) for name, _ in lw.open(path).items()}
    fresh = lw.load(measured(torchmetrics), path)
    assert (float(fresh.mean.compute()), float(fresh.best.compute())) == (4.0, 2.0)
    fresh.mean.update(1.0)
    assert float(fresh.mean.compute()) == 3.0
    # A metric that is not persistent is not saved, as in PyTorch, and starts again.
    model.mean.persistent(False)
    assert "mean.mean_value" not in str(lw.open(lw.save(model, tmp_path / "b.safetensors")))


def test_metrics_that_keep_a_list_load_only_into_a_list_of_the_same_length(tmp_path: Path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    def collected(*values: float) -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), torchmetrics.CatMetric())
        model[1].persistent(True)
        for value in values:
            model[1].update(value)
        return model

    path = lw.save(collected(1.0, 2.0), tmp_path / "a.safetensors")
    assert lw.load(collected(8.0, 9.0), path)[1].compute().tolist() == [1.0, 2.0]
    with pytest.raises(lw.LoadError, match=r"1\.value"):
        lw.load(collected(), path)


class Counting(nn.Module):
    """Keeps a tensor and a number outside its buffers, and saves them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.seen, self.table, self.reads = 0, torch.zeros(3), 0

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "seen"] = self.seen
        destination[prefix + "table"] = self.table.clone()  # a copy, not the tensor itself

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        self.seen, self.table = state.pop(prefix + "seen"), state.pop(prefix + "table").clone()
        self.reads += 1
        super()._load_from_state_dict(state, prefix, *others)


@pytest.mark.parametrize("by_pytorch", [False, True])
def test_state_that_a_module_saves_itself_is_passed_back_to_it(by_pytorch: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Counting())
    model[1].seen, model[1].table = 7, torch.arange(3.0)
    path = tmp_path / "a"
    if by_pytorch:
        torch.save(model.state_dict(), path)
    else:
        lw.save(model, path)
    fresh: Any = lw.load(nn.Sequential(nn.Linear(2, 2), Counting()), path)
    assert (fresh[1].seen, fresh[1].table.tolist()) == (7, [0.0, 1.0, 2.0])
    assert torch.equal(fresh[0].weight, model[0].weight)


class Turned(nn.Linear):
    """Transposes its weight when it is saved and when it is loaded."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"].T

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        state[prefix + "weight"] = state[prefix + "weight"].T
        super()._load_from_state_dict(state, prefix, *others)


def test_a_module_that_saves_other_values_than_it_has_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(Turned(2, 2))
    match = "state_dict\\(\\) of Turned has a different weight than the module itself"
    with pytest.raises(lw.WalkError, match=match):
        lw.save(model, tmp_path / "a.safetensors")
    before = model[0].weight.clone()
    with pytest.raises(lw.LoadError, match=match):
        lw.load(model, nn.Sequential(nn.Linear(2, 2)))
    assert torch.equal(model[0].weight, before)


def test_load_state_dict_hooks_are_called(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    path = lw.save(model, tmp_path / "a.safetensors")
    called = []
    fresh = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    fresh[0].register_load_state_dict_pre_hook(lambda module, state, *others: called.append(sorted(state)))
    fresh.register_load_state_dict_post_hook(lambda module, keys: called.append(keys))
    lw.load(fresh, path)
    assert called[0].missing_keys == []
    assert called[1] == ["bias", "weight"]
    assert torch.equal(fresh[0].weight, model[0].weight)
    fresh[0].register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.append("scale"))
    with pytest.raises(lw.LoadError, match=r"Linear cannot load its own state: scale is missing; the model is changed"):
        lw.load(fresh, path)


def test_a_hook_that_adds_to_the_state_dict_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update({f"{prefix}scale": torch.ones(1)})
    )
    with pytest.raises(lw.WalkError, match=r"cannot save 0: the state_dict\(\) of Linear also contains scale"):
        lw.save(model, tmp_path / "a.safetensors")


def test_a_module_with_its_own_load_state_dict_uses_it(tmp_path: Path) -> None:
    class Reading(nn.Linear):
        ready = False

        def load_state_dict(self, state: Any, *others: Any, **options: Any) -> Any:
            self.ready = True
            return super().load_state_dict(state, *others, **options)

    source = Reading(2, 2)
    loaded = lw.load(Reading(2, 2), lw.save(source, tmp_path / "a.safetensors"))
    assert loaded.ready
    assert torch.equal(loaded.weight, source.weight)


def test_state_that_a_parent_adds_or_changes_for_its_child_is_refused(tmp_path: Path) -> None:
    def adds(module: nn.Module, state: Any, prefix: str, _: Any) -> None:
        state[f"{prefix}0.scale"] = torch.ones(3)

    def changes(module: nn.Module, state: Any, prefix: str, _: Any) -> None:
        state[f"{prefix}0.weight"] = state[f"{prefix}0.weight"] * 2

    for hook, match in ((adds, "also contains 0.scale"), (changes, "has a different 0.weight")):
        model = nn.Sequential(nn.Linear(2, 2))
        model.register_state_dict_post_hook(hook)
        with pytest.raises(lw.WalkError, match=match):
            lw.save(model, tmp_path / "a.safetensors")


def test_weights_that_a_module_encodes_are_refused_even_if_encoding_changes_nothing() -> None:
    class Scaled(nn.Linear):
        scale = 1.0  # so that encoding does not change the weights

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "weight"] = destination[prefix + "weight"] * self.scale

    with pytest.raises(lw.LoadError, match="has a different weight than the module itself"):
        lw.load(Scaled(2, 2), {"weight": torch.ones(2, 2), "bias": torch.ones(2)})
