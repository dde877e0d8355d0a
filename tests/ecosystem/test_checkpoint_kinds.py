"""Kinds of checkpoints that people have: every array, tie and plain value is found where it was saved, bit for bit.
tools/checkpoint_kinds (`make kinds`) tries all of them; here are those for which `make test` installs the tools, with
fewer words and actions than their names say."""

import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.long import LONG
from tools.checkpoint_kinds import HYPERPARAMETERS, KINDS, training_scripts
from tools.checkpoint_kinds.comparing import Outcome, outcome
from tools.checkpoint_kinds.kind import Kind, Written, pretended, recorded, saved
from tools.checkpoint_kinds.truth import Bits, Truth

pytestmark = pytest.mark.filterwarnings("ignore")
SOME = [kind for kind in KINDS.values() if not kind.extra]


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    if not LONG:
        monkeypatch.setattr(training_scripts, "ACTIONS", 20_000)
        monkeypatch.setattr(training_scripts, "WORDS", 6_000)


@pytest.mark.parametrize("kind", SOME, ids=lambda kind: kind.name)
def test_every_array_of_a_checkpoint_is_found_bit_for_bit(kind: Kind, tmp_path: Path) -> None:
    result = outcome(kind, tmp_path)
    assert not result.refused
    assert result.problems == ()


@pytest.mark.parametrize("kind", HYPERPARAMETERS, ids=lambda kind: kind.name)
def test_a_hyperparameter_does_not_keep_a_lightning_checkpoint_from_opening(kind: Kind, tmp_path: Path) -> None:
    result = outcome(kind, tmp_path)
    assert not result.refused
    assert result.problems == ()


def test_there_are_thirty_six_kinds() -> None:
    assert len(KINDS) == 36
    assert len(HYPERPARAMETERS) >= 21


# -- the comparison itself -----------------------------------------------------------------------------------------


def _result(change: Callable[[Truth], Any], folder: Path, **facts: Any) -> Outcome:
    """The outcome for a checkpoint whose truth was changed after it was saved."""

    def write(folder: Path) -> Written:
        weight = torch.ones(2, 3)
        content = {"model": {"a.weight": weight, "b.weight": weight, "bias": torch.zeros(3)}, "epoch": 3}
        truth = saved(content, folder / "model.pt")
        change(truth)
        return Written(folder / "model.pt", truth, **facts)

    return outcome(Kind("changed", "torch", "", (), write), folder)


CHANGES: dict[str, Callable[[Truth], Any]] = {
    "model.bias is Bits": lambda truth: truth.arrays.update({"model.bias": Bits.of(torch.tensor([0.0, -0.0, 0.0]))}),
    "model.a.weight is Bits": lambda truth: truth.arrays.update({"model.a.weight": Bits.of(torch.ones(3, 2))}),
    "model.c is not in the tree": lambda truth: truth.arrays.update({"model.c": Bits.of(torch.ones(1))}),
    "model.bias is in the tree, but not": lambda truth: truth.arrays.pop("model.bias"),
    "model.a.weight and model.b.weight are tied, but": lambda truth: truth.ties.clear(),
    "model.a.weight and model.bias are not tied": lambda truth: truth.ties.add(
        frozenset(["model.a.weight", "model.bias"])
    ),
    "epoch is 3, and was saved as 3.0": lambda truth: truth.plain.update(epoch=3.0),
    "step = 7 is not in the tree": lambda truth: truth.plain.update(step=7),
    "the module model is dict, and was saved as Linear": lambda truth: truth.modules.update(model="Linear"),
}


@pytest.mark.parametrize("problem", CHANGES)
def test_a_difference_from_what_was_saved_is_reported(problem: str, tmp_path: Path) -> None:
    assert any(found.startswith(problem) for found in _result(CHANGES[problem], tmp_path).problems)


def test_a_checkpoint_that_is_as_it_was_saved_has_no_problems(tmp_path: Path) -> None:
    result = _result(lambda truth: None, tmp_path)
    assert (result.problems, result.arrays, result.ties) == ((), 3, 1)


def test_missing_optimizer_state_and_unlisted_objects_are_reported(tmp_path: Path) -> None:
    result = _result(lambda truth: None, tmp_path, optimizer="optimizer", opaque=("datetime.date",))
    assert result.problems == (
        "datetime.date is not listed as opaque",
        "there is no optimizer state at optimizer",
    )


def test_what_a_tool_passes_to_torch_save_is_recorded_as_it_was_then(tmp_path: Path) -> None:
    weight, original = torch.ones(2), torch.save
    with recorded() as truths:
        torch.save({"weight": weight}, tmp_path / "model.pt")
    weight.zero_()
    assert truths[0].arrays == {"weight": Bits.of(torch.ones(2))}
    assert torch.save is original


def test_pretended_modules_are_gone_afterwards() -> None:
    class Stage(Enum):
        ONE = 1

    before = Stage.__module__, Stage.__qualname__
    with pretended({"surely.absent.config": [Stage], "__main__": [Stage]}):
        assert sys.modules["surely.absent.config"].Stage is Stage
    assert not any(name.startswith("surely") for name in sys.modules)
    assert not hasattr(sys.modules["__main__"], "Stage")
    assert (Stage.__module__, Stage.__qualname__) == before
