"""Checkpoints with very many leaves and shards: a small version of `benchmarks/bench_scale.py`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import leafwise as lw

resource = pytest.importorskip("resource")  # not on Windows
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_scale.py"


@pytest.mark.slow
@pytest.mark.parametrize(("form", "leaves", "most"), [("safetensors", 20_000, 2_900), ("dcp", 3_000, 9_000)])
def test_a_sparse_checkpoint_of_many_shards_is_opened_and_planned(form: str, leaves: int, most: int) -> None:
    command = [sys.executable, str(SCRIPT), "measure", str(leaves), "64", form]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")  # it checks counts, sizes and pairs itself
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["leaves"] == leaves
    assert figures["apparent"] > leaves * 2 * 1024 * 1024 > 100 * figures["disk"]
    # What Python and its libraries take once is in it, too: with a million leaves, 1,750 bytes a leaf remain.
    assert (figures["plan peak"] - figures["model"]) / leaves < most


def test_more_shards_than_open_files_are_allowed_are_opened(tmp_path: Path) -> None:
    shards = 40
    model = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(shards)])
    lw.save(model, tmp_path / "model.safetensors", shard_size=64)
    assert len(list(tmp_path.glob("*.safetensors"))) == shards
    code = f"import leafwise as lw; t = lw.open({str(tmp_path)!r}); print(len(t), t['39.weight'].numpy().shape)"

    def opened(soft: int, hard: int) -> "subprocess.CompletedProcess[str]":
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
        return subprocess.run([sys.executable, "-c", limit + code], capture_output=True, encoding="utf-8")

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = opened(24, hard)
    assert done.stdout == f"{shards} (4, 4)\n", done.stderr
    refused = opened(24, 24)
    assert "this process may only have 24 files open; allow more, with ulimit -n" in refused.stderr


def test_plain_values_of_a_source_are_found_wherever_they_are() -> None:
    """The keys of nodes are made only where a plain value is; deep and wrapped ones must still be right."""
    nested: dict[str, object] = {"rate": 0.5}
    for depth in range(50):
        nested = {"below": nested, "depth": depth}
    source = {"model": nn.DataParallel(nn.Linear(2, 2)), "run": nested, "list": [{"a": [1, {"b": 2}]}]}
    target: dict[str, Any] = {
        "model": nn.Linear(2, 2),
        "run": json.loads(json.dumps(nested)),
        "list": [{"a": [0, {"b": 0}]}],
    }
    target["run"]["below"]["depth"] = -1
    assert lw.plan(target, source).holds
    loaded = lw.load(target, source)
    assert loaded["run"] == nested
    assert loaded["list"] == [{"a": [1, {"b": 2}]}]
