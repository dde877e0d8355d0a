"""A checkpoint can be saved under any name that the system accepts, and no file of another program is removed."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leafwise as lw
from leafwise.cli import main
from leafwise.files.writing import checkpoint_writer, destination
from leafwise.files.writing.writer import LocalOutput

SINGLE: dict[str, Any] = {}
SHARDED = {"shard_size": 80}


def state(generation: int) -> dict[str, Any]:
    return {"a": np.full(10, generation), "b": np.full(10, generation), "n": generation}


def generation(path: Any) -> int:
    lw.verify(path)
    with lw.open(path) as t:
        found = {int(value) for leaf in t for value in leaf.numpy()} | {t["n"]}
    assert len(found) == 1, found
    return found.pop()


def must_take(folder: Path, name: str) -> None:
    """Skips the test if the file system does not accept a name, for instance because it requires UTF-8."""
    try:
        (folder / name).touch()
        (folder / name).unlink()
    except OSError as error:
        pytest.skip(f"no such names here: {error.strerror}")


NAMES = {
    "backslash": "a\\b",
    "backslash and suffix": "..\\b.safetensors",
    "drive": "v:2.safetensors",
    "colon": ":",
    "quotes": "a'\"b.safetensors",
    "newline": "a\nb.safetensors",
    "spaces": " a b ",
    "glob": "a*[1]?.safetensors",
    "not ASCII": "модель-é-模型.safetensors",
    "not UTF-8": os.fsdecode(b"caf\xe9.safetensors"),
    "dash of": "m-00001-of-00002.safetensors",
    "hidden": ".m",
    "dots": "...",
    "looks like ours": ".leafwise-0123456789abcdef-0123456789abcdef.part",
    "240 bytes": "m" * 240,
    "244 bytes": "m" * 232 + ".safetensors",
    "244 bytes, not ASCII": "é" * 122,
    "243 bytes, not ASCII": "m" + "é" * 121,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_that_the_system_takes_can_be_saved_to(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    must_take(tmp_path, name + ".index.json")
    number = 0
    for options in (SINGLE, SINGLE, SHARDED, SHARDED, SINGLE, SHARDED):
        number += 1
        written = lw.save(state(number), path, **options)
        assert generation(written) == generation(path) == number
        if options is SHARDED or (name.endswith(".safetensors") and "-of-" not in name):
            assert generation(tmp_path) == number
        # What was there before is gone.
        assert len(os.listdir(tmp_path)) == (1 if options is SINGLE else 3)
        saving = lw.save(state(number), path, background=True, **options)
        assert saving.wait() == written
    target = state(0)
    lw.load(target, path)
    assert target["a"][0] == number


def test_names_as_long_as_the_system_allows_are_taken_for_one_file(tmp_path: Path) -> None:
    for name in ("m" * 255, "m" * 243 + ".safetensors", "é" * 127 + "m"):
        must_take(tmp_path, name)
        assert len(os.fsencode(name)) == 255 == os.pathconf(tmp_path, "PC_NAME_MAX")
        for number in (1, 2):
            assert generation(lw.save(state(number), tmp_path / name)) == number
        # The name of an index is longer. The error comes before anything is written, and the old file stays.
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(lw.FileError, match=r"in shards: .*\.index\.json.* would be longer than the 255 bytes"):
            lw.save(state(3), tmp_path / name, **SHARDED)
        assert sorted(os.listdir(tmp_path)) == before
        assert generation(tmp_path / name) == 2
        with pytest.raises(lw.FileError, match=r"File name too long"):
            lw.save(state(3), tmp_path / (name + "m"))
        assert sorted(os.listdir(tmp_path)) == before


def test_names_that_would_be_opened_as_an_index_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".index.json", str(tmp_path / ".index.json"), "m.index.json.index.json"):
        for options in (SINGLE, SHARDED):
            with pytest.raises(lw.FileError, match=r"names that end in .* are for the index of shards"):
                lw.save(state(1), name, **options)
    assert os.listdir(tmp_path) == []


def test_paths_that_no_file_can_have_are_an_error(tmp_path: Path) -> None:
    wrong = f"{tmp_path}/a\ud800b"
    for verb in (lw.open, lw.verify, lw.stats, lambda path: lw.save(state(1), path), lambda path: lw.diff(path, path)):
        with pytest.raises(lw.FileError):
            verb(wrong)


def test_convert_writes_files_with_long_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = lw.save({"a": np.ones(3)}, tmp_path / "a.safetensors")
    for suffix in (".safetensors", ".npz"):
        target = tmp_path / ("é" * 121 + suffix)
        assert main(["convert", source, str(target)]) == 0
        assert lw.open(target)["a"].numpy().tolist() == [1, 1, 1]


# -- files of other programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [SINGLE, SHARDED], ids=["one file", "shards"])
def test_unfinished_files_of_other_programs_are_left_alone(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = [
        ".model.safetensors.part",
        ".model.safetensors.download.part",
        ".model.safetensors.123-0a1b2c3d.part",  # the form that leafwise used before
        ".model.safetensors.index.json.123-0a1b2c3d.part",
        ".leafwise-.part",
        ".leafwise-model.safetensors.part",
        "model.safetensors.part",
        "model-00001-of-00002.safetensors.part",
    ]
    for name in theirs:
        (tmp_path / name).write_bytes(b"theirs")
    for number in (1, 2):
        lw.save(state(number), tmp_path / "model.safetensors", **options)
    main(["convert", str(tmp_path / "model.safetensors"), str(tmp_path / "other.safetensors")])
    assert {name: (tmp_path / name).read_bytes() for name in theirs} == dict.fromkeys(theirs, b"theirs")


def test_what_a_killed_save_left_is_removed_whatever_the_name(tmp_path: Path) -> None:
    for name in NAMES.values():
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        folder.mkdir()
        must_take(folder, name)
        left = LocalOutput(str(folder / name))
        left.close()
        shard = LocalOutput(str(folder / "m-00001-of-00002.safetensors"), of=name)
        shard.close()
        assert len(os.fsencode(os.path.basename(left.staged))) < 60
        lw.save(state(1), folder / name)
        assert os.listdir(folder) == [name]


# -- other indexes in the folder -----------------------------------------------------------------------------

FOREIGN = {
    "empty": b"",
    "not JSON": b"\xff\xfe\x00 nothing",
    "a list": b"[]",
    "no weight_map": b'{"weights": {}}',
    "a weight_map of something else": b'{"weight_map": [1, {}]}',
    "nested": b"[" * 100_000,
    "of others": b'{"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}}',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_other_indexes_do_not_keep_old_shards(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    foreign = tmp_path / "zz.index.json"
    foreign.write_bytes(content)
    (tmp_path / "folder.index.json").mkdir()
    (tmp_path / "dangling.index.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.index.json")
    for number in (1, 2, 3):
        lw.save(state(number), path, **SHARDED)
        assert len(list(tmp_path.glob("*-of-*"))) == 2
    lw.save(state(4), path)
    assert list(tmp_path.glob("*-of-*")) == []
    assert foreign.read_bytes() == content
    assert generation(path) == 4


@pytest.mark.parametrize("name", ["model.safetensors", "é\".safetensors", "a\\b"])  # fmt: skip
def test_shards_that_a_copy_of_the_index_names_stay_even_if_it_is_cut(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    index = Path(lw.save(state(1), path, **SHARDED))
    whole = index.read_bytes()
    shards = set(json.loads(whole)["weight_map"].values())
    copy = tmp_path / "copy.safetensors.index.json"
    for kept in (whole, whole[:-20], whole[1:]):
        copy.write_bytes(kept)
        lw.save(state(2), path, **SHARDED)
        assert shards <= set(os.listdir(tmp_path))
        lw.save(state(2), path)
        assert {copy.name, *shards, name} == set(os.listdir(tmp_path))
    copy.write_bytes(whole)
    assert generation(copy) == 1
    copy.unlink()
    lw.save(state(2), path)
    assert os.listdir(tmp_path) == [name]


def test_shards_with_signs_that_are_replaced_now_are_removed_and_copies_of_shards_are_not(tmp_path: Path) -> None:
    path = tmp_path / "12:30.safetensors"
    lw.save(state(1), path, **SHARDED)
    shards = [name for name in os.listdir(tmp_path) if "-of-" in name]
    assert all(name.startswith("12_30-") for name in shards)
    # The names that earlier versions used.
    for name in shards:
        (tmp_path / name.replace("12_30", "12:30")).write_bytes(b"of an earlier save")
        (tmp_path / f"my-{name}").write_bytes(b"a copy")
    lw.save(state(2), path)
    assert set(os.listdir(tmp_path)) == {path.name, *(f"my-{name}" for name in shards)}


def test_an_index_that_may_not_be_read_keeps_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    lw.save(state(1), path, **SHARDED)
    (tmp_path / "copy.index.json").write_bytes(b"{}")
    opened = destination.local.disk.open

    def forbidden(name: str, *options: Any) -> Any:  # as chmod does for everybody except root
        if name.endswith("copy.index.json"):
            raise PermissionError(errno.EACCES, "not allowed", name)
        return opened(name, *options)

    monkeypatch.setattr(destination.local.disk, "open", forbidden)
    lw.save(state(2), path, **SHARDED)
    assert len(list(tmp_path.glob("*-of-*"))) == 4


def test_an_index_that_is_too_large_to_be_read_keeps_the_shards(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    lw.save(state(1), path, **SHARDED)
    with (tmp_path / "copy.index.json").open("wb") as file:
        file.truncate(destination.shards.MAX_INDEX + 1)
    lw.save(state(2), path, **SHARDED)
    assert len(list(tmp_path.glob("*-of-*"))) == 4


# -- what was written is opened before anything is replaced ----------------------------------------------------


@pytest.mark.parametrize("before", [SINGLE, SHARDED], ids=["from one file", "from shards"])
@pytest.mark.parametrize(
    ("wrong", "after"),
    [
        *((wrong, after) for wrong in ("header", "names", "refused") for after in (SINGLE, SHARDED)),
        ("index", SHARDED),  # one file has none
    ],
    ids=lambda value: value if isinstance(value, str) else "to shards" if value is SHARDED else "to one file",
)
def test_a_result_that_cannot_be_opened_replaces_nothing(
    wrong: str, before: dict[str, Any], after: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    lw.save(state(1), path, **before)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    if wrong == "header":  # the file does not contain what it should
        fill = LocalOutput.fill
        monkeypatch.setattr(
            LocalOutput, "fill", lambda self, data, start: fill(self, data[:-9] + b"?" + data[-8:], start)
        )
    elif wrong == "index":
        monkeypatch.setattr(checkpoint_writer, "_index", lambda *_: b"{}")
    elif wrong == "names":
        escaped = checkpoint_writer._escaped
        monkeypatch.setattr(checkpoint_writer, "_escaped", lambda text: escaped(text).replace('\\"n\\"', '\\"m\\"'))
    else:

        def refuse(*_: Any) -> None:
            raise lw.FileError("cannot be")

        monkeypatch.setattr(destination.detect, "read", refuse)
    with pytest.raises(lw.FileError, match=r"nothing was replaced|nothing was saved"):
        lw.save(state(2), path, **after)
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files
    assert generation(path) == 1


def test_what_is_converted_is_opened_before_it_replaces_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leafwise.files.writing import checkpoint_writer

    source = lw.save({"a": np.ones(3)}, tmp_path / "a.safetensors")
    target = tmp_path / "b.safetensors"
    target.write_bytes(b"old")
    monkeypatch.setattr(checkpoint_writer, "rows_of", lambda arrays: {name: {} for name, *_ in arrays})
    assert main(["convert", source, str(target)]) == 1
    assert "cannot be read back, so nothing was replaced" in capsys.readouterr().err
    assert target.read_bytes() == b"old"
