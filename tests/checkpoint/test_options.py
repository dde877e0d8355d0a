"""Arguments of `lw.save` and `lw.load` that make no sense are refused, and nothing is written or changed."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"allow": 5}, "allow= takes a set"),
        ({"allow": {"everything"}}, "allow= takes"),
        ({"rename": lambda name: 1 / 0}, "rename= raised ZeroDivisionError: division by zero for 'weight'"),
        ({"rename": lambda name: 5}, "rename= returned 5 for 'weight'"),
        ({"rename": 5}, "rename= takes"),
        ({"rename": [("(", "")]}, "rename= takes pairs"),
        ({"rename": [("w", r"\9")]}, "cannot replace 'w' by"),
        ({"rename": {"weight": 5}}, "maps names to names"),
        ({"rename": lambda name: "one"}, "would both become 'one'"),
        ({"ties": "maybe"}, "ties= takes"),
    ],
)
def test_options_of_load_that_make_no_sense_are_an_error(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(lw.QueryError) as caught:
        lw.load(nn.Linear(2, 2), nn.Linear(2, 2), **options)
    assert cause in str(caught.value)


def test_names_metadata_paths_and_sizes_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    for state in (
        {"w": torch.ones(1), "a.b": 1, "a": {"b": 2}},
        {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
        {"__metadata__": torch.ones(1)},
        {"\ud800": torch.ones(1)},
        {"\ud800": 1},
    ):
        with pytest.raises(lw.Error, match=r"cannot save"):
            lw.save(state, tmp_path / "a.safetensors")
    for metadata in ({"k": "\ud800"}, {"k": 1}, {"leafwise": "x"}, "x"):
        with pytest.raises(lw.QueryError, match=r"metadata"):
            lw.save({"a": torch.ones(1)}, tmp_path / "a.safetensors", metadata=metadata)  # type: ignore[arg-type]
    for wrong in (None, 5, "a\0b", "", str(tmp_path / "no") + "/", "s3://bucket/x"):
        with pytest.raises(lw.FileError):
            lw.save({"a": torch.ones(1)}, wrong)  # type: ignore[arg-type]
    for size in (0, -1, "abc", "1.2.3GB", True, "0"):
        with pytest.raises(lw.QueryError, match=r"shard_size"):
            lw.save({"a": torch.ones(1)}, tmp_path / "a.safetensors", shard_size=size)
    for dtype in ("int8", "complex64", "float7"):
        with pytest.raises(lw.QueryError, match=r"cannot cast to"):
            lw.save({"a": torch.ones(1)}, tmp_path / "a.safetensors", dtype=dtype)
    assert os.listdir(tmp_path) == []


def test_renames_that_fail_and_sizes_that_are_not_numbers_are_an_error(tmp_path: Path) -> None:
    path = lw.save({"m": nn.Linear(2, 2), "step": 1}, tmp_path / "a.safetensors")
    for rename in (
        lambda name: {"m.weight": "m.weight", "m.bias": "m.bias"}[name],
        lambda name: 5 if name == "step" else name,
    ):
        with pytest.raises(lw.QueryError, match=r"rename="):
            lw.load({"m": nn.Linear(2, 2), "step": 0}, path, rename=rename)
    with pytest.raises(lw.QueryError, match=r"rename="):
        lw.load({"m": nn.Linear(2, 2), "step": 0}, path, rename=np.array(["a", "b"]))
    for size in (".", "9" * 400):
        with pytest.raises(lw.QueryError, match=r"shard_size"):
            lw.save(nn.Linear(2, 2), tmp_path / "b.safetensors", shard_size=size)
