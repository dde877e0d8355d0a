"""What reviews of the statistics found."""

import copy
import math
import os
import pickle
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.messages import said
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import leafwise as lw
from leafwise.render import text_of
from leafwise.render.terminal import Terminal

LARGEST = torch.finfo(torch.float64).max


class Wrapper(torch.Tensor):
    """A tensor that stands for another, and has no memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("not this one")

    def __repr__(self) -> str:  # type: ignore[override]
        return "Wrapper"


def test_tensors_without_memory_are_left_out_and_named() -> None:
    freed, cut = torch.ones(1_000), torch.ones(1_000)
    freed.untyped_storage().resize_(0)
    cut.untyped_storage().resize_(400)
    with FakeTensorMode():
        fake = torch.ones(3)
    s = lw.stats({"freed": freed, "cut": cut, "fake": fake, "wrapped": Wrapper(torch.ones(3)), "here": torch.ones(2)})
    assert list(s) == ["here"]
    assert set(s.skipped) == {"freed", "cut", "fake", "wrapped"}


def test_constants_have_no_spread() -> None:
    for value in (0.1, 1e10 / 3, LARGEST, -1e-310):
        row = lw.stats({"x": torch.full((10_001,), value, dtype=torch.float64)})["x"]
        assert (row.std, row.mean) == (0, value)


def test_extremes_of_doubles_stay_finite() -> None:
    ends = torch.tensor([LARGEST, -LARGEST] * 10, dtype=torch.float64)
    assert lw.stats({"x": ends})["x"].std == pytest.approx(LARGEST)
    apart = {"a": torch.full((4,), 1e308, dtype=torch.float64), "b": torch.full((4,), -1e308, dtype=torch.float64)}
    assert lw.stats(apart).total.std == 1e308
    assert lw.stats(apart).total.mean == 0


def test_far_from_zero_in_double_precision() -> None:
    generator = np.random.default_rng(0)
    for offset, scale in ((1e8, 1e-3), (1e12, 1.0)):
        x = generator.normal(size=600_000) * scale + offset  # several blocks, and several chunks
        exact = math.sqrt(math.fsum((x - offset - math.fsum(x - offset) / x.size) ** 2) / x.size)
        assert lw.stats({"x": x})["x"].std == pytest.approx(exact, rel=1e-8)


def test_quantiles_begin_with_the_smallest_bin() -> None:
    row = lw.stats({"x": torch.full((100,), 0.7)})["x"]
    assert row.quantile(0) == 0.5
    assert row.quantile(1) == pytest.approx(0.7)
    for wrong in ("a", None, math.nan, -0.1):
        with pytest.raises(lw.QueryError, match="between 0 and 1"):
            row.quantile(wrong)  # type: ignore[arg-type]


def test_what_a_cast_does_is_what_it_would_do() -> None:
    def outside(*values: float, dtype: Any = "float16") -> Any:
        return lw.stats({"x": torch.tensor(values, dtype=torch.float64)})["x"].outside(dtype)

    assert outside(65505.0, 33000.0) == (0, 0, 0)  # rounded to the largest number
    assert outside(65520.0) == (1, 0, 0)
    assert outside(464.0, 300.0, dtype="float8_e4m3fn") == (0, 0, 0)  # a tie, which goes to the even one
    assert outside(465.0, 300.0, 255.0, dtype="float8_e4m3fn") == (2, 0, 0)
    assert outside(1.5 * 2.0**-10, dtype="float8_e4m3fn") == (0, 1, 0)  # rounded up to the smallest
    assert outside(1.0, 1e6, dtype=torch.float16) == outside(1.0, 1e6, dtype=np.float16) == (1, 0, 0)
    for dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        x = torch.randn(5_000, dtype=torch.float64) * torch.logspace(-9, 1, 5_000)
        cast = x.to(dtype).double()
        found = lw.stats({"x": x})["x"].outside(dtype)
        assert found.vanish == int(((cast == 0) & (x != 0)).sum())
        assert found.overflow == 0


def test_a_masked_array_is_not_taken_for_its_data() -> None:
    data = np.arange(4.0)
    masked = np.ma.masked_array(data, [0, 1, 0, 1])
    for model in ({"m": masked, "d": data}, {"d": data, "m": masked}):
        s = lw.stats(model)
        assert list(s) == ["d"]
        assert list(s.skipped) == ["m"]


def test_parts_say_what_is_not_in_them() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    s = lw.stats(net)
    with pytest.raises(lw.PathError, match=r"no statistics of what '1\.\*' matches; 1\.weight: a meta tensor"):
        s.fold("1.*")
    with pytest.raises(lw.PathError, match=r'nothing at "0\.weight" in this part of the tree'):
        s.select("**.bias")["0.weight"]
    for wrong in (-1, 1.5, "2"):
        with pytest.raises(lw.QueryError, match="a depth is a whole number"):
            s.text(depth=wrong)  # type: ignore[arg-type]


def test_rows_and_tables_compare_by_what_they_say() -> None:
    model = {"a": torch.tensor([1.0, math.nan]), "b": torch.full((2,), math.nan)}
    assert lw.stats(model) == lw.stats(model)
    assert lw.stats(model)["a"] == lw.stats(model)["a"]
    assert len({lw.stats(model)["a"], lw.stats(model)["a"]}) == 1
    assert lw.stats(model)["a"] != lw.stats(model)["b"]
    s = lw.stats(model)
    assert "a" in s
    assert all(wrong not in s for wrong in ("c", None, 3, ""))


def test_many_threads_may_look_at_one_result_first() -> None:
    for _ in range(20):
        s = lw.stats({str(number): torch.randn(50) for number in range(20)} | {"n": np.ones(3)})
        with ThreadPoolExecutor(8) as pool:
            assert len({repr(row) for row in pool.map(lambda _, s=s: s.total, range(8))}) == 1


def test_results_can_be_pickled_and_copied() -> None:
    s = lw.stats({"a": torch.randn(50)})
    assert pickle.loads(pickle.dumps(s["a"])) == copy.deepcopy(s["a"]) == s["a"]
    assert copy.deepcopy(s) == s


def test_bars_are_for_weights_and_say_where_they_end() -> None:
    small, middle = torch.full((5,), 2.0**-30), torch.full((5,), 0.5)
    text = lw.stats({"small": small, "middle": middle, "ids": torch.arange(10**6, 10**6 + 9)}).text()
    header, first, second, ids = text.splitlines()[:4]
    assert "≤2^-20" in header
    assert header.endswith("≥2^-1")
    ones = lw.stats({"middle": middle, "mask": torch.ones(3, dtype=torch.bool)}).text()
    assert ones.splitlines()[0].endswith("≥2^-1")
    assert first.index("█") == header.index("≤")
    assert second.endswith("█")
    assert ids.endswith("█")


def test_narrow_terminals_keep_what_is_wrong() -> None:
    name = "transformer.layers.{}.attention.projection.weight"
    model = {name.format(number): torch.randn(50) for number in range(3)}
    model[name.format(1)][3] = math.nan
    text = text_of(lw.stats(model), terminal=Terminal(width=80))
    assert "1 NaN" in text
    assert "std" in text
    assert "not finite in 1 leaf" in text


def test_almost_all_zero_is_not_all() -> None:
    text = lw.stats({"x": torch.cat([torch.ones(1), torch.zeros(10**6)])}).text()
    assert ">99.99%" in text
    assert "100%" not in text


def test_an_empty_table_is_drawn_in_a_notebook() -> None:
    for nothing in ({}, nn.ReLU(), []):
        assert "0 leaves" in lw.stats(nothing)._repr_html_()


def test_exact_whole_numbers_in_pandas() -> None:
    frame = lw.stats({"a": torch.tensor([2**63 - 1]), "b": torch.tensor([0.5])}).pandas()
    assert frame.loc["a", "max"] == 2**63 - 1
    assert isinstance(frame.loc["a", "max"], int)


def test_a_bare_tensor_is_told_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(lw.WalkError, match=r"which is a leaf and no tree; put it into a container"):
        lw.stats(torch.ones(3))
    path = lw.save(nn.Linear(2, 2), tmp_path / "model.safetensors")
    with pytest.raises(lw.WalkError, match="a file holds no gradients"):
        lw.stats(path, of="grad")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "leafwise", "stats", *arguments]


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = str(lw.save(nn.Linear(2, 2), tmp_path / "model.safetensors"))
    full = subprocess.run(
        f"exec {shlex.join(command(path))} > /dev/full", shell=True, capture_output=True, encoding="utf-8"
    )
    assert (full.returncode, said(full.stderr)) == (1, "leafwise: cannot write: No space left on device\n")
    closed = subprocess.run(f"exec {shlex.join(command(path))} >&-", shell=True, capture_output=True, encoding="utf-8")
    assert "Traceback" not in closed.stderr


def test_interrupting_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\ndef build():\n    pathlib.Path('started').touch()\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        command("slow:build"),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        # What a shell starts in the background ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "started").exists() and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert told == "leafwise: interrupted\n"
