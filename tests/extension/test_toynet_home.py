"""The toy home passes the contract of homes, and every verb works with it or is refused."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leafwise as lw
from leafwise.testing import Case
from leafwise.testing.home_contract import *  # noqa: F403
from leafwise.testing.verbs import VERBS


def tied() -> Any:
    toynet = importlib.import_module("toynet")
    table = toynet.Weight([[0.0, 1.0, 2.0], [3.0, 4.0, 5.5]])
    other = toynet.Layer(weight=toynet.Weight([[0.5, -0.5, 0.25], [7.0, 1.0, 2.0]]))
    return toynet.Layer(embed=toynet.Layer(weight=table), other=other, head=toynet.Layer(weight=table))


@pytest.fixture
def case() -> Case:
    return Case(tied, {"embed.weight": [("head.weight", "same")], "other.weight": []}, 12)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_works_or_is_refused(verb: str, tmp_path: Path) -> None:
    if verb in ("tie", "untie", "freeze", "flat", "keep_ties"):
        with pytest.raises(lw.Unsupported, match="toynet cannot"):
            VERBS[verb](tied, tmp_path)
    else:
        VERBS[verb](tied, tmp_path)


def test_the_home_is_loaded_once_its_framework_is_imported() -> None:
    lw.tree({"a": np.ones(2)})
    assert "toynet_home" not in sys.modules
    lw.tree(tied())
    assert "toynet_home" in sys.modules
