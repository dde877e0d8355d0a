"""`tools/mutants.py`: its list fits the code, and it tells changes that tests notice from those that they do not."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from tools import mutants
from tools.mutant_list import MUTANTS, Mutant
from tools.mutants import Outcome, mutated, place, results, room, summary, table

PACKAGE = mutants.ROOT / "src" / "leafwise"


@pytest.mark.slow
def test_every_change_has_its_place_and_gives_code_that_can_be_parsed() -> None:
    for mutant in MUTANTS:
        source = (PACKAGE / mutant.module).read_text("utf-8")
        assert source.count(mutant.old) == 1, mutant
        assert mutant.old != mutant.new, mutant
        ast.parse(mutated(source, mutant))


def test_the_tests_of_every_change_exist() -> None:
    for test in {test for mutant in MUTANTS for test in mutant.tests}:
        path, _, name = test.partition("::")
        source = (mutants.ROOT / path).read_text("utf-8")
        assert not name or f"def {name}(" in source, test


def test_no_change_is_listed_twice() -> None:
    assert len({mutant[:3] for mutant in MUTANTS}) == len(MUTANTS) >= 60


def test_every_room_in_which_mistakes_are_silent_has_ten_changes() -> None:
    counts = Counter(map(room, MUTANTS))
    assert all(counts[name] >= 10 for name in ("core", "share", "checkpoint", "iterate", "files")), counts


def test_a_text_that_does_not_occur_once_is_refused() -> None:
    for source in ("", "a, a"):
        with pytest.raises(ValueError, match="not once"):
            mutated(source, Mutant("core/walk.py", "a", "b", ()))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository whose only test does not notice everything."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # pytest starts in a third of the time
    package = tmp_path / "src" / "leafwise"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core" / "sums.py").write_text("def total(a, b):\n    return a + b\n\n\nUNUSED = 1\n", "utf-8")
    (tmp_path / "test_sums.py").write_text(
        "import subprocess, sys\n"
        "from leafwise.core.sums import total\n"
        "def test_here():\n"
        "    assert total(2, 3) == 5\n"
        "def test_in_another_process():\n"
        "    code = 'from leafwise.core.sums import total; print(total(0, 7))'\n"
        "    assert subprocess.check_output([sys.executable, '-c', code]) == b'7\\n'\n",
        "utf-8",
    )
    return tmp_path


def of_sums(old: str, new: str) -> Mutant:
    return Mutant("core/sums.py", old, new, ("test_sums.py",))


@pytest.mark.slow
def test_changes_are_killed_survive_or_are_broken_and_the_checkout_stays_as_it_is(checkout: Path) -> None:
    source = checkout / "src" / "leafwise" / "core" / "sums.py"
    before = source.read_bytes()
    seen: list[Outcome] = []
    listed = [
        of_sums("a + b", "a - b"),
        of_sums("a + b", "a + b if a else 0"),  # only the other process notices
        of_sums("UNUSED = 1", "UNUSED = 2"),
        of_sums("def total", "def totals"),
    ]
    outcomes = results(listed, root=checkout, workers=4, baseline=False, report=seen.append)
    assert [outcome.state for outcome in outcomes] == ["killed", "killed", "survived", "broken"]
    assert summary(outcomes) == {"mutants": 4, "killed": 2, "survived": 1, "broken": 1}
    assert table(outcomes).splitlines()[-1].split() == ["all", "4", "2", "1", "1"]
    assert sorted(seen) == sorted(outcomes)
    assert place(listed[2], checkout) == "core/sums.py:5"
    assert source.read_bytes() == before
    assert not list(checkout.rglob("*.pyc"))


def test_tests_that_fail_without_a_change_and_tests_that_hang_are_reported(checkout: Path) -> None:
    (checkout / "test_sums.py").write_text("def test_it():\n    assert False\n", "utf-8")
    with pytest.raises(mutants.BaselineError, match=r"(?s)without a change:.*FAILED test_sums\.py"):
        results([of_sums("a + b", "a")], root=checkout, workers=1)
    (checkout / "test_sums.py").write_text("def test_it():\n    while True:\n        pass\n", "utf-8")
    [outcome] = results([of_sums("a + b", "a")], root=checkout, workers=1, baseline=False, limit=0.1)
    assert (outcome.state, summary([outcome])["killed"]) == ("timed out", 1)


def test_the_list_can_be_printed_and_limited(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["--list", "--only", "core/walk.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len([mutant for mutant in MUTANTS if mutant.module == "core/walk.py"])
    with pytest.raises(SystemExit):
        mutants.main(["--list", "--only", "no change contains this"])
    assert "no change contains" in capsys.readouterr().err
