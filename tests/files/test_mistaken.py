"""Files that are not checkpoints: the error says what they are."""

import gzip
import io
import json
import lzma
import struct
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import leafwise as lw


def _zip(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name.replace("__", "."), content)
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("weights/model.pt"))
    return buffer.getvalue()


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


TEXTS = {
    "log": "epoch 1: loss 2.31\nepoch 2: loss 2.12\n" * 500,
    "yaml": "# settings\nmodel:\n  layers: 3\n",
    "python": "import torch\n\nmodel = torch.nn.Linear(2, 2)\n",
    "csv": "name,shape\nweight,3\n",
    "one line": "hello",
    "colors": "\x1b[31mred\x1b[0m text\n",
    "umlauts": "Größe: 3 €\n" * 900,
    "list": json.dumps([1, 2, 3]),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", TEXTS)
def test_text_is_recognized(name: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(TEXTS[name].encode(encoding))
    with pytest.raises(lw.FileError, match="not a checkpoint: it looks like text, and begins with '") as caught:
        lw.open(path)
    first = TEXTS[name].splitlines()[0].strip()
    assert ascii(first[:60]) in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (_png(), "not a checkpoint: it is a picture"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(99), "not a checkpoint: it is a picture"),
        (b"RIFF\x24\x00\x00\x00WEBPVP8 " + bytes(99), "not a checkpoint: it is a picture"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(99), "not a checkpoint: it is a sound file"),
        (b"\x00\x00\x00\x20ftypisom" + bytes(99), "not a checkpoint: it is a video"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3" + bytes(99), "not a checkpoint: it is a PDF document"),
        (b"SQLite format 3\x00" + bytes(99), "not a checkpoint: it is an SQLite database"),
        (b"PAR1" + bytes(99), "not a checkpoint: it is a Parquet table"),
        (_tar(), "this is a tar archive; unpack it first"),
        (_zip(a__txt=b"x", b__txt=b"y"), "a zip file that contains 'a.txt', 'b.txt'; if the checkpoint is one of its"),
        (_zip(config__json=b"{}", model__weights__h5=b"x"), "it is a Keras file"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(99), "this is a 7z archive; unpack it first"),
        (b"\x04\x22\x4d\x18" + bytes(99), "this file is compressed with lz4"),
        (b"BZh91AY&SY" + bytes(99), "this file is compressed with bzip2"),
        (gzip.compress(b"x"), "this file is compressed with gzip"),
        (lzma.compress(b"x"), "this file is compressed with xz"),
        (b'{"a": 1}', "this is JSON; to open an index of shards, give its folder"),
        (b"<!DOCTYPE html>", "this is an HTML page, perhaps an error page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a Git LFS pointer"),
        (bytes(range(1, 256)), "does not recognize this file format"),
        (b"\xff\xfe", "only 2 bytes"),
    ],
    ids=range(21),
)
def test_other_files_are_recognized_by_their_first_bytes(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(lw.FileError, match=said):
        lw.open(path)


@pytest.mark.skipif(sys.platform != "linux", reason="the program of this interpreter is for Linux")
def test_a_program_is_recognized() -> None:
    with pytest.raises(lw.FileError, match="not a checkpoint: it is a program or library for Linux"):
        lw.open(Path(sys.executable).resolve())


def test_checkpoints_are_not_mistaken_for_other_files(tmp_path: Path) -> None:
    """Whatever the first bytes of their values look like."""
    np.save(tmp_path / "a.npy", np.frombuffer(b"import torch\n" * 8, np.uint8))
    np.savez(tmp_path / "a.npz", text=np.zeros(3))
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("a.npy", "a.npz", "a.pt", "old.pt"):
        assert len(lw.open(tmp_path / name)) == 1
