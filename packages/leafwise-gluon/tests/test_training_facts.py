"""Optimizers, schedules, losses and metrics give what MXNet gives, in both dialects and for both kinds of arrays."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from training_facts import LOSSES, METRICS, OPTIMIZERS, REPRS, SCHEDULES, UPDATES, Facts, lines

from leafwise_gluon import autograd, dialect, loss, lr_scheduler, metric, modes, nd, optimizer
from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.arrays.ndarray import wrap

HERE = Path(__file__).parent
MODULES: dict[str, ModuleType] = {
    "optimizer": optimizer,
    "lr_scheduler": lr_scheduler,
    "loss": loss,
    "metric": metric,
    "autograd": autograd,
    "nd": nd,
}
GROUPS = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "loss": LOSSES, "representation": REPRS, "metric": METRICS}
GROUPS["update"] = UPDATES

# What fails in MXNet only because it mixes its two kinds of arrays, or asks an array for its truth value, works here.
WORKS_HERE = {"TypeError", "AttributeError"}
DCASGD = "dcasgd learning_rate=0.1, momentum=0.5, wd=0.5, clip_gradient=0.5, rescale_grad=0.25"
POISSON = "PoissonNLLLoss(compute_full=True)(x, k)"

# MXNet 1.x ignores the batch axis here.
REFUSED = "L2Loss(batch_axis=1)(x, y)"


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    dialect.use_version(2)
    modes.back_to_the_dialect()


def golden(version: int) -> dict[str, Any]:
    return json.loads((HERE / f"training.golden{version}.json").read_text("utf-8"))  # type: ignore[no-any-return]


def array(values: Any, mode: str) -> Any:
    return (wrap if mode == "np" else wrap_legacy)(torch.tensor(values))


def close(ours: Any, theirs: Any, tolerance: float) -> bool:
    if isinstance(theirs, dict):
        return set(ours) == set(theirs) and all(close(ours[key], theirs[key], tolerance) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(close(a, b, tolerance) for a, b in zip(ours, theirs, strict=True))
    if isinstance(theirs, float) and isinstance(ours, int | float):
        return ours == pytest.approx(theirs, rel=tolerance, abs=tolerance, nan_ok=True)
    return bool(ours == theirs)


@pytest.mark.parametrize("mode", ["nd", "np"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", list(GROUPS))
def test_facts(group: str, version: Any, mode: str, restored: None) -> None:
    if (group, mode) == ("update", "np"):
        return  # these functions take arrays of nd only
    dialect.use_version(version)
    modes.set_np() if mode == "np" else modes.reset_np()
    facts = Facts(MODULES, lambda values: array(values, mode), version)
    expected = golden(version)[mode][group]
    assert list(expected) == lines(GROUPS[group])
    wrong = []
    for case in expected:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, theirs = facts.safely(group, case), expected[case]
        if case == REFUSED and (version, mode) == (1, "np"):
            assert "does not support" in str(facts.errors[group, case])
            continue
        if "raises" in theirs and theirs["raises"] == "NameError":  # it does not exist in this version
            assert "does not support" in str(facts.errors[group, case]), case
            continue
        if "raises" in theirs and (theirs["raises"] in WORKS_HERE or case in (DCASGD, POISSON)):
            continue
        # MXNet's softmax on CPUs is less exact than its other functions.
        tolerance = 1e-3 if "float16" in case else 1e-5 if group == "loss" else 2e-6
        if not close(ours, theirs, tolerance):
            wrong.append(f"{case}\n   ours   {ours} {facts.errors.get((group, case))}\n   theirs {theirs}")
    assert not wrong, "\n".join(wrong)
