"""Every verb over PyTorch, an immutable toy and files: it works, or is refused. `tests/jax` has the rows of JAX."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract import toy
from torch import nn

import leafwise as lw
from leafwise.testing.verbs import VERBS


def _module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 3, bias=False))


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(3, 4)).astype(np.float32) for name in ("first", "second")}


def _toy() -> toy.Model:
    return toy.Model(first=toy.Model(weight=toy.matrix(3, 4)), second=toy.Model(weight=toy.matrix(3, 4)))


HOMES: dict[str, Callable[[], Any]] = {
    "PyTorch": _module,
    "NumPy": _arrays,
    "a toy": _toy,
}

REFUSED = {
    *((home, verb) for home in ("NumPy", "a toy") for verb in ("tie", "untie", "freeze", "flat")),
}


@pytest.fixture(autouse=True)
def _toy_home() -> Iterator[None]:
    with toy.registered():
        yield


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("home", HOMES)
def test_a_verb_works_or_is_refused(home: str, verb: str, tmp_path: Path) -> None:
    if (home, verb) in REFUSED:
        # Nothing of NumPy is trained, which lw.flat finds first.
        with pytest.raises(lw.WalkError if (home, verb) == ("NumPy", "flat") else lw.Unsupported):
            VERBS[verb](HOMES[home], tmp_path)
    else:
        VERBS[verb](HOMES[home], tmp_path)
