"""`lw.save` under a name that belongs to another format: it asks what is meant."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import leafwise as lw
from leafwise.cli import main

STATE = {"w": torch.ones(2)}


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("model.pt", "torch.save for a pickle"),
        ("model.pth", "torch.save for a pickle"),
        ("pytorch_model.bin", "torch.save for a pickle"),
        ("last.CKPT", "torch.save for a pickle"),
        ("model.pkl", "pickle.dump for a pickle"),
        ("model.npz", "leafwise convert for an .npz file"),
        ("model.gguf", "llama.cpp"),
        ("model.params", "leafwise convert for a .params file"),
        ("model.h5", "Keras"),
        ("model.pt.index.json", "torch.save for a pickle"),
    ],
)
def test_the_name_of_another_format_is_refused_with_what_to_type(name: str, instead: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"what was there")
    with pytest.raises(lw.FileError) as caught:
        lw.save(STATE, tmp_path / name)
    said = str(caught.value)
    path = str(tmp_path / name.removesuffix(".index.json"))
    assert said.startswith(f"cannot save {path!r}: ")
    assert f"use lw.save(source, {os.path.splitext(path)[0] + '.safetensors'!r}), " in said
    assert 'add format="safetensors" to write safetensors under this name, or use ' in said
    assert instead in said
    assert (tmp_path / name).read_bytes() == b"what was there"


def test_the_message_is_short_and_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lw.FileError) as caught:
        lw.save(STATE, "model.pt")
    assert str(caught.value) == (
        "cannot save 'model.pt': .pt is a suffix of PyTorch files, and lw.save writes safetensors; use "
        "lw.save(source, 'model.safetensors'), add format=\"safetensors\" to write safetensors under this name, or use "
        "torch.save for a pickle"
    )


@pytest.mark.parametrize("options", [{}, {"shard_size": "4B"}, {"background": True}])
def test_format_writes_safetensors_under_any_name(options: dict[str, object], tmp_path: Path) -> None:
    state = {"a": torch.ones(1), "b": torch.zeros(1)}
    path = lw.save(state, tmp_path / "model.pt", format="safetensors", **options)  # type: ignore[call-overload]
    path = path if isinstance(path, str) else path.wait()
    assert lw.verify(tmp_path / "model.pt").ok
    if not options:
        assert load_file(path).keys() == {"a", "b"}
    with pytest.raises(lw.QueryError, match='format= takes "safetensors", "dcp" or "orbax", not \'pt\''):
        lw.save(state, tmp_path / "x.pt", format="pt")  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["model.safetensors", "model", "run.v2", "model.pt.safetensors", "a.pt.copy", ".pt"])
def test_other_names_are_written(name: str, tmp_path: Path) -> None:
    assert lw.open(lw.save(STATE, tmp_path / name))["w"].shape == (2,)


def test_convert_refuses_names_of_formats_that_it_does_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(STATE, tmp_path / "a.pt")
    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]) == 1
    assert "use a name that ends in .safetensors, .npz or .params" in capsys.readouterr().err
    assert not (tmp_path / "b.pt").exists()
