"""A statistic is declared once, in core/results/moments.py: tables, JSON, pandas, commands and kernels use that."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import leafwise as lw
from leafwise.cli import main
from leafwise.core.results.moments import COUNTS, FIELDS, NUMBERS, STATISTICS, Moments, Statistic, TableColumn
from leafwise.kernels import cpu

MODEL = {"a": np.array([3.0, -4.0], np.float32), "b": {"c": np.array([0.0, 1.0, np.nan])}}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The root mean square, derived from measured statistics: a property, and an entry in the list."""

    def of(moments: Moments) -> float:
        return math.hypot(moments.mean, moments.std)

    assert not hasattr(Moments, "made_up")
    monkeypatch.setattr(Moments, "made_up", property(of), raising=False)
    STATISTICS.append(Statistic("made_up", column=TableColumn(99, "root mean square", "number", drop=99)))
    yield
    STATISTICS.pop()


@pytest.mark.usefixtures("made_up")
def test_a_derived_statistic_is_shown_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    s = lw.stats(MODEL)
    assert s["a"].made_up == s["a"].numbers()["made_up"] == pytest.approx(math.sqrt(12.5))
    assert s.total.made_up == pytest.approx(math.sqrt(26 / 4))
    header, first, *_ = s.text().splitlines()
    assert header.split()[:9] == ["values", "mean", "std", "min", "max", "zeros", "root", "mean", "square"]
    assert first.split()[:8] == ["a", "2", "-0.5", "3.5", "-4", "3", "0", "3.54"]
    assert [leaf["made_up"] for leaf in s.json()["leaves"]] == [s["a"].made_up, s["b.c"].made_up]
    assert list(s.json()["total"])[-2:] == ["made_up", "histogram"]
    assert "root mean square" in s._repr_html_()
    assert s.pandas()["made_up"].tolist() == [s["a"].made_up, s["b.c"].made_up]
    lw.save(MODEL, tmp_path / "model")
    assert main(["stats", str(tmp_path / "model")]) == 0
    assert "root mean square" in capsys.readouterr().out
    assert main(["stats", str(tmp_path / "model"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leaves"][0]["made_up"] == s["a"].made_up


def test_names_and_their_order_do_not_change() -> None:
    names = [
        "dtype", "count", "finite", "nan", "posinf", "neginf", "zeros", "subnormals",
        "min", "max", "mean", "std", "l1", "l2", "absmax",
    ]  # fmt: skip
    s = lw.stats(MODEL)
    assert list(s["a"].numbers()) == names
    assert list(s.json()["total"]) == [*names, "histogram"]
    assert s.text().splitlines()[0].split()[:6] == ["values", "mean", "std", "min", "max", "zeros"]


def test_every_field_is_declared_and_every_declared_one_is_there() -> None:
    declared = [statistic.name for statistic in STATISTICS]
    assert len(declared) == len(set(declared))
    assert set(FIELDS) - {"histogram"} <= set(declared)
    assert all(hasattr(Moments, name) for name in declared)
    assert (*COUNTS, *NUMBERS, "histogram") == FIELDS  # the order in which kernels return them
    assert NUMBERS[:2] == ("min", "max")
    places = [statistic.column.place for statistic in STATISTICS if statistic.column]
    assert len(places) == len(set(places))
    joint = {"mean", "mean_rest", "std"}
    assert {name for name in NUMBERS if not next(one.fold for one in STATISTICS if one.name == name)} == joint
    assert [field.name for field in fields(Moments)] == list(FIELDS)


def test_the_c_code_finds_what_is_declared() -> None:
    text = (Path(cpu.__file__).parent / "c" / "chunk.h").read_text("utf-8")
    struct = re.search(r"struct result \{(.*?)\};", text, re.S)
    assert struct
    types = {"int64_t": "int64", "double": "float64"}
    lines = re.findall(r"(int64_t|double) ([\w, ]+);", struct[1])
    named = [(name, types[kind]) for kind, names in lines for name in names.split(", ")]
    assert named == [(name, cpu._RESULT[name].name) for name in cpu._RESULT.names or ()]


def test_triton_finds_what_is_declared() -> None:
    kernels = pytest.importorskip("leafwise.kernels.triton.triton_kernels")
    worked_out = {"deviation": "std", "square": "l2"}
    found = {worked_out.get(name, name) for name in kernels.ROWS}
    assert found >= {*COUNTS[1:], *NUMBERS} - {"mean_rest"}


def test_a_library_built_from_other_code_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    library = type("Other", (), {"leafwise_result_bytes": lambda self: 8})()
    monkeypatch.setattr(cpu, "load", lambda: library)
    array = np.arange(5.0)
    with pytest.warns(UserWarning, match="C library is from another version: statistics are computed with NumPy"):
        [found] = cpu.measure([cpu.run_of(array)])
    assert (found.mean, found.max) == (2, 4)
