"""Scripts in the manner of a textbook's chapters print what MXNet prints.

A script whose name ends in _1 or _2 is for that version of MXNet only; the others are for both.
"""

import re
from pathlib import Path

import pytest
from tests.forked import Commands

CHAPTERS = Path(__file__).parent / "chapters"
NUMBER = re.compile(r"-?\d+\.\d*(?:e[-+]\d+)?")
CASES = [
    (script, version)
    for script in sorted(CHAPTERS.glob("[!_]*.py"))
    for version in ("1", "2")
    if not script.stem.endswith(("_1", "_2")) or script.stem.endswith(f"_{version}")
]


def last_digits(number: str) -> float:
    """Two units of the last printed digit of a number, which may differ between processors."""
    digits, _, exponent = number.partition("e")
    return float(f"2e{int(exponent or 0) - len(digits.partition('.')[2])}")


def assert_same_text(ours: list[str], theirs: list[str]) -> None:
    """Everything is equal, except the last digits of numbers, and the spaces in lines where such digits differ."""
    assert len(ours) == len(theirs)
    for our_line, their_line in zip(ours, theirs, strict=True):
        if our_line == their_line:
            continue
        our_numbers, their_numbers = NUMBER.findall(our_line), NUMBER.findall(their_line)
        assert our_numbers != their_numbers, (our_line, their_line)
        assert NUMBER.sub("#", our_line).split() == NUMBER.sub("#", their_line).split()
        for our_number, their_number in zip(our_numbers, their_numbers, strict=True):
            near = pytest.approx(float(their_number), abs=last_digits(their_number), rel=0)
            assert float(our_number) == near, (our_line, their_line)


@pytest.mark.parametrize(("script", "version"), CASES, ids=[f"{path.stem}-{version}" for path, version in CASES])
def test_a_chapter_prints_what_mxnet_prints(script: Path, version: str, scripts: Commands) -> None:
    name = script.stem if script.stem.endswith(f"_{version}") else f"{script.stem}_{version}"
    done = scripts.run("--mxnet", version, script)
    assert done.returncode == 0, done.stderr
    golden = (CHAPTERS / f"{name}.golden.txt").read_text("utf-8")
    assert_same_text(done.stdout.splitlines(), golden.splitlines())
