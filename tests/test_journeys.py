"""How far a verb travels through the source for a model of two layers: what these numbers exceed is a second way to do
what is done elsewhere, or a question that is asked leaf by leaf. `python -m tools.journeys` prints them; lower them
here when they have become smaller."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools import journeys

# The most files, jumps between files and between rooms, and modules that a new process imports. Versions of Python and
# PyTorch differ by a few.
MOST = {
    "load": (86, 490, 200, 158),
    "load .pt": (90, 660, 190, 172),
    "save": (61, 475, 170, 172),
    "diff": (69, 820, 310, 119),
    "tree": (31, 370, 96, 92),
    "show": (52, 490, 135, 84),
    "stats": (56, 480, 187, 101),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Callable[[], Any]], Path]:
    folder = tmp_path_factory.mktemp("journeys")
    return journeys.verbs(folder), folder


def test_every_verb_of_the_tool_has_its_numbers(made: tuple[dict[str, Callable[[], Any]], Path]) -> None:
    assert made[0].keys() == MOST.keys()


@pytest.mark.parametrize("name", MOST)
def test_a_verb_travels_no_farther(name: str, made: tuple[dict[str, Callable[[], Any]], Path]) -> None:
    taken = journeys.journey(made[0][name], rounds=1)
    files, jumps, rooms, _ = MOST[name]
    assert 10 < len(taken.files) <= files, sorted(taken.files)
    assert taken.between_files <= jumps
    assert taken.between_rooms <= rooms


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST)
def test_a_verb_imports_no_more(name: str, made: tuple[dict[str, Callable[[], Any]], Path]) -> None:
    assert 20 < journeys.modules(name, made[1]) <= MOST[name][3]
