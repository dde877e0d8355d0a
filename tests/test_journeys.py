"""How far a verb travels through the source for a model of two layers: what these numbers exceed is a second way to do
what is done elsewhere, or a question that is asked leaf by leaf. `python -m tools.journeys` prints them; lower them
here when they have become smaller."""

import json
import subprocess
import sys
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
    "diff": (69, 940, 310, 119),
    "tree": (32, 430, 96, 92),
    "show": (53, 580, 135, 84),
    "stats": (57, 560, 187, 101),
}


@pytest.fixture(scope="module")
def numbers() -> Any:
    """In a process of its own: what else a process has imported has a say in what a verb asks."""
    command = [sys.executable, "-m", "tools.journeys", "--json"]
    root = Path(__file__).parent.parent
    return json.loads(subprocess.run(command, cwd=root, capture_output=True, check=True, encoding="utf-8").stdout)


@pytest.mark.slow
def test_verbs_travel_no_farther(numbers: Any) -> None:
    assert numbers.keys() == MOST.keys()
    for name, (visited, jumps, rooms) in numbers.items():
        assert 10 < len(visited) <= MOST[name][0], (name, visited)
        assert 10 < jumps <= MOST[name][1], name
        assert 10 < rooms <= MOST[name][2], name


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST)
def test_a_verb_imports_no_more(name: str, tmp_path: Path) -> None:
    journeys.verbs(tmp_path)
    assert 20 < journeys.modules(name, tmp_path) <= MOST[name][3]
