"""`leafwise convert`, as a shell would use it."""

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import leafwise as lw
from leafwise.cli import main

OLD = b"old" * 1000


def test_convert_selects_renames_and_casts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.randn(60, 40)
    state = {
        "model": {"embed.weight": weight, "head.weight": weight, "turned": weight.T, "n": torch.arange(3)},
        "step": 3,
    }
    torch.save(state, tmp_path / "a.pt")
    source, target = str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")
    assert main(["convert", source, target, "--where", "model.**", "--rename", r"^model\.="]) == 0
    assert "2 arrays under 4 names" in capsys.readouterr().err
    assert load_file(target).keys() == {"embed.weight", "n"}
    with lw.open(target) as t:
        assert t.counts.leaves == 2
        assert torch.equal(torch.from_numpy(t["turned"].numpy().copy()), weight.T)
    assert main(["convert", source, target, "--where", "model.**", "--rename", r"^model\.=", "--ties", "copy"]) == 0
    loaded = load_file(target)
    model: Any = state["model"]
    assert loaded.keys() == model.keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.items())
    assert stat.S_IMODE(os.stat(target).st_mode) == 0o666 & ~_umask()
    assert main(["convert", target, str(tmp_path / "c.npz"), "--dtype", "float16"]) == 0
    arrays_ = np.load(tmp_path / "c.npz")
    assert np.array_equal(arrays_["turned"], weight.T.numpy().astype(np.float16))
    assert arrays_["n"].dtype == np.int64
    assert (
        main(["convert", source, str(tmp_path / "d.safetensors"), "--dtype", "bfloat16", "--where", "model.turned"])
        == 0
    )
    assert torch.equal(load_file(tmp_path / "d.safetensors")["model.turned"], weight.T.bfloat16())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_what_cannot_be_converted_is_an_error_that_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": torch.ones(2), "b": torch.ones(2), "f8": torch.ones(2).to(torch.float8_e5m2)}, tmp_path / "a.pt")
    torch.save({"m": torch.ones(2, device="meta")}, tmp_path / "meta.pt")
    (tmp_path / "old.npz").write_bytes(OLD)
    for arguments, cause in (
        (["a.pt", "b.txt"], "unknown format; use a name that ends in .safetensors, .npz or .params"),
        (
            ["a.pt", "b.npz", "--dtype", "float7"],
            "cannot cast to 'float7'; floating-point arrays can be cast to float64",
        ),
        (["a.pt", "b.npz", "--rename", "x"], "takes PATTERN=TEXT"),
        (["a.pt", "b.npz", "--rename", "(=x"], "is not a regular expression"),
        (["a.pt", "b.npz", "--rename", r"a=\9"], "cannot replace 'a' by"),
        (["a.pt", "b.npz", "--rename", "^[ab]$=c"], "a and b would be called 'c'"),
        (["a.pt", "b.npz", "--where", "z.*"], "--where 'z.*' matches nothing"),
        (["a.pt", "old.npz"], "cannot write f8: npz has no dtype float8_e5m2"),
        (["meta.pt", "b.npz"], "m in the source: it was on meta"),
        (["none.pt", "b.npz"], "No such file"),
        (["a.pt", "no/such/b.npz", "--where", "a"], "No such file or directory"),
    ):
        paths = [str(tmp_path / argument) for argument in arguments[:2]]
        assert main(["convert", *paths, *arguments[2:]]) == 1
        assert cause in capsys.readouterr().err, arguments
    assert (tmp_path / "old.npz").read_bytes() == OLD
    assert not (tmp_path / "b.npz").exists()


def test_only_names_that_match_are_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.ones(3)
    torch.save({"model": {"w": weight}, "copy": {"w": weight}}, tmp_path / "a.pt")
    source, target = str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")
    assert main(["convert", source, target, "--where", "model.**", "--rename", r"^model\.="]) == 0
    assert list(load_file(target)) == ["w"]
    for name, suffix in (
        ("__metadata__", ".safetensors"),
        ("a\0b", ".npz"),
        ("s\ud800", ".safetensors"),
        ("s\ud800", ".npz"),
    ):
        torch.save({name: weight, "other": weight + 1}, tmp_path / "odd.pt")
        destination = tmp_path / f"good{suffix}"
        destination.write_bytes(b"good")
        assert main(["convert", str(tmp_path / "odd.pt"), str(destination)]) == 1
        assert "the format does not allow this name" in capsys.readouterr().err
        assert destination.read_bytes() == b"good"
    torch.save({"step": 3}, tmp_path / "none.pt")
    assert main(["convert", str(tmp_path / "none.pt"), target]) == 1
    assert "the new file would contain no array" in capsys.readouterr().err


def test_compressed_arrays_are_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", big=np.zeros((3000, 1000)), row=np.zeros((1, 3_000_000)))
    times = []
    from leafwise.files.sources.source import InflatedSource

    begin = InflatedSource._rewind
    monkeypatch.setattr(InflatedSource, "_rewind", lambda self: times.append(1) or begin(self))
    assert main(["convert", str(tmp_path / "a.npz"), str(tmp_path / "b.safetensors")]) == 0
    assert len(times) == 2
    assert load_file(tmp_path / "b.safetensors")["row"].shape == (1, 3_000_000)
