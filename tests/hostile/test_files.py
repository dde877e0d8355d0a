"""Hostile files are refused with a FileError or open without harm, within a second and 256 MB. None of their code
runs."""

import ast
import io
import os
import resource
import socket
import struct
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.files.writers import WRITERS, arrays
from tests.hostile import files
from tests.long import short_or_long

import leafwise as lw

REPOSITORY = Path(__file__).parents[2]


def try_to_open(path: Path, read: bool = True, strict: bool = False) -> str:
    """Opens a file, walks it, draws it and reads every value; returns the error message, if there is one."""
    try:
        with lw.open(path, strict=strict) as tree:
            tree.text()
            tree.json()
            assert all("\x1b" not in repr(tree[path]) for path, _ in tree.opaque if not tree.path)
            for leaf in tree if read else ():
                with suppress(lw.Unsupported):
                    leaf.numpy()
    except lw.FileError as error:
        return str(error) if str(path) in str(error) else f"the file is not named in: {error}"
    return "opened"


def executed(folder: Path) -> bool:
    return (folder / files.MARK).exists()


@pytest.mark.parametrize("wrap", [files.in_zip, files.in_legacy], ids=["zip", "legacy"])
def test_no_gadget_runs(wrap: Any, tmp_path: Path) -> None:
    before = set(sys.modules)
    for name, data in files.gadgets(tmp_path).items():
        path = tmp_path / "model.pt"
        path.write_bytes(wrap(data))
        for strict in (False, True):
            said = try_to_open(path, strict=strict)
            refused = "the pickle cannot be read: " in said or "the pickle is not valid here" in said
            assert refused or (said == "opened" and not strict), (name, said)
            assert not executed(tmp_path), name
            assert "\x1b" not in said
    assert not {"webbrowser", "pty", "code", "timeit"} & (set(sys.modules) - before)


def test_gadgets_are_shown_by_name_and_do_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(files.in_zip(files.gadgets(tmp_path)["os.system 4"]))
    with lw.open(tmp_path / "model.pt") as tree:
        assert [class_name for _, class_name in tree.opaque] == ["os.system"]
    assert not executed(tmp_path)


def test_strictly_opened_gadgets_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(files.in_zip(files.gadgets(tmp_path)["os.system 4"]))
    with pytest.raises(
        lw.FileError,
        match=r"at byte \d+: the pickle cannot be read: it contains the Python class or function os.system, which "
        r"leafwise does not load; if you trust the file, load it with PyTorch and save only",
    ):
        lw.open(tmp_path / "model.pt", strict=True)


@pytest.mark.parametrize("wrap", [files.in_zip, files.in_legacy], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", files.strange_pickles())
def test_strange_pickles_are_refused_quickly(name: str, wrap: Any, tmp_path: Path) -> None:
    data = files.strange_pickles()[name]
    path = tmp_path / "model.pt"
    path.write_bytes(wrap(data, **{"0": bytes(16)}) if wrap is files.in_zip else wrap(data))
    started = time.process_time()
    said = try_to_open(path)
    opens = name in ("a billion laughs", "a tuple as a key that takes for ever", "a list as a key")
    assert (said == "opened") == opens, (name, said)
    assert time.process_time() - started < 2


@pytest.mark.slow
@pytest.mark.parametrize("name", files.recursive_pickles())
def test_recursive_and_deep_pickles_end_quickly(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(files.in_zip(files.recursive_pickles()[name]))
    started = time.process_time()
    try_to_open(path)
    assert time.process_time() - started < 5  # a hang guard, not a measurement


@pytest.mark.parametrize("name", files.STRANGE_ZIPS)
def test_strange_zips_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(files.strange_zips()[name])
    assert try_to_open(path) != "opened" or name in ("no entries", "a TorchScript program")
    assert tuple(files.strange_zips()) == files.STRANGE_ZIPS


@pytest.mark.parametrize("name", files.absurd_headers())
def test_absurd_headers_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(files.absurd_headers()[name])
    assert try_to_open(path) != "opened"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files.sound_files(tmp_path_factory.mktemp("sound"))


def test_sound_files_open(sound: dict[str, bytes], tmp_path: Path) -> None:
    assert len(sound) > 8
    for data in sound.values():
        (tmp_path / "x").write_bytes(data)
        assert try_to_open(tmp_path / "x") == "opened"


@pytest.mark.slow
def test_files_truncated_at_any_byte_are_refused(sound: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "cut"
    for name, data in sound.items():
        # The first and the last part, which contain the headers, and samples between them; in `make long`, every byte
        # of these parts.
        ends = {*range(0, min(len(data), 700), short_or_long(5, 1))}
        ends |= {*range(max(0, len(data) - 300), len(data), short_or_long(3, 1)), *range(0, len(data), 97)}
        for end in sorted(ends):
            if name == "GGUF" and end > len(data) - 32:
                continue  # only the padding after the last tensor is lost
            path.write_bytes(data[:end])
            assert try_to_open(path, read=False) != "opened", (name, end)


@pytest.mark.slow
def test_files_with_flipped_bits_open_or_are_refused(sound: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "flipped"
    for name, data in sound.items():
        # Steps that are odd, so that every bit of a byte is flipped somewhere.
        for at in {*range(0, min(len(data), 600), short_or_long(9, 1)), *range(0, len(data), short_or_long(211, 53))}:
            changed = bytearray(data)
            changed[at] ^= 1 << (at % 8)
            path.write_bytes(changed)
            assert "is not named" not in try_to_open(path), name  # opens, or is refused; nothing else


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    """The pickle of a distributed checkpoint, and an index of shards, truncated and with flipped bits."""
    for name, file in (("DCP", ".metadata"), ("sharded safetensors", "model.safetensors.index.json")):
        folder = tmp_path / name.replace(" ", "-")
        WRITERS[name](folder, arrays())
        whole = (folder / file).read_bytes()
        for end in range(0, len(whole), short_or_long(11, 3)):
            (folder / file).write_bytes(whole[:end])
            assert try_to_open(folder, read=False) != "opened", (name, end)
        for at in range(0, len(whole), short_or_long(9, 1)):
            changed = bytearray(whole)
            changed[at] ^= 1 << (at % 8)
            (folder / file).write_bytes(changed)
            try_to_open(folder)


def test_gadgets_in_a_distributed_checkpoint_do_not_run(tmp_path: Path) -> None:
    for name, data in files.gadgets(tmp_path).items():
        (tmp_path / ".metadata").write_bytes(data)
        assert try_to_open(tmp_path) != "opened", name
        assert not executed(tmp_path)


def test_names_are_shown_escaped(tmp_path: Path) -> None:
    for name in files.names().values():
        path = tmp_path / "names.safetensors"
        path.write_bytes(files.safetensors_with(name))
        tree = lw.open(path)
        for text in (tree.text(full=True), str(tree), tree._repr_html_()):
            assert not set(text) & set("\x1b\u202e\0")
        assert "<script>" not in tree._repr_html_()
        assert len(tree) == 1


def _sparse(
    kind: int, stored: tuple[int, ...], shape: tuple[int, ...], extras: list[np.ndarray], values: np.ndarray
) -> bytes:
    def shaped(numbers: tuple[int, ...]) -> bytes:
        return struct.pack(f"<i{len(numbers)}q", len(numbers), *numbers)

    parts = (
        struct.pack("<QQQIi", 0x112, 0, 1, 0xF993FAC9, kind)
        + shaped(stored)
        + shaped(shape)
        + struct.pack("<iii", 1, 0, 0)
    )
    parts += b"".join(struct.pack("<i", 6) + shaped(extra.shape) for extra in extras) + values.tobytes()
    return parts + b"".join(extra.tobytes() for extra in extras) + struct.pack("<Q", 0)


@pytest.mark.parametrize(
    ("kind", "shape", "extras", "values"),
    [
        (1, (4, 2), [[-1, 3]], np.ones((2, 2), "f4")),
        (1, (4, 2), [[9]], np.ones((1, 2), "f4")),
        (2, (3, 2), [[0, 600_000_000, 600_000_000, 600_000_000], [0]], np.ones(1, "f4")),
        (2, (3, 2), [[0, 1, 0, 1], [0]], np.ones(1, "f4")),
        (2, (3, 2), [[0, 0, 0, 1], [7]], np.ones(1, "f4")),
    ],
)
def test_sparse_arrays_whose_indices_do_not_fit_are_refused(
    kind: int, shape: Any, extras: Any, values: Any, tmp_path: Path
) -> None:
    arrays_ = [np.array(extra, "i8") for extra in extras]
    (tmp_path / "a.params").write_bytes(_sparse(kind, values.shape, shape, arrays_, values))
    with pytest.raises(lw.FileError, match=r"indices of a sparse array do not match its shape"):
        lw.open(tmp_path / "a.params")["0"].numpy()


def test_indexes_and_headers_with_duplicate_names_or_wrong_facts_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "x.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "x.safetensors"}}')
    assert [str(path) for path, _ in lw.open(tmp_path).items()] == ["a"]
    for text in ('{"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}}', '{"weight_map": {}}'):
        index.write_text(text)
        with pytest.raises(lw.FileError):
            lw.open(tmp_path)
    row = '{"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
    odd = '{"d\\u0074ype": "U8", "shape": [1], "data\\u005foffsets": [0, 1]}'
    for header, cause in (
        (f'{{"a": {row}, "a": {odd}}}', "twice"),
        ('{"a": {"dtype": "F32", "shape": [0, 4611686018427387904, 9], "data_offsets": [0, 0]}}', "needs dtype"),
    ):
        (tmp_path / "y").write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0")
        with pytest.raises(lw.FileError, match=cause):
            lw.open(tmp_path / "y")
    first = '"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}'
    rows = f'{{{first}, "b": {{"dtype": "U8", "shape": [4], "data_offsets": [4.0, 8]}}}}'
    (tmp_path / "z").write_bytes(len(rows).to_bytes(8, "little") + rows.encode() + bytes(8))
    with pytest.raises(lw.FileError, match=r"needs dtype, shape and two data_offsets"):
        lw.open(tmp_path / "z")


def test_zip_entries_that_overlap_are_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", files._npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}"))
        archive.writestr("b.npy", files._npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}"))
    data = bytearray(file.getvalue())
    second = data.rindex(b"PK\x01\x02")
    data[second + 42 : second + 46] = bytes(4)
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(lw.FileError, match=r"overlaps another"):
        lw.open(tmp_path / "a.npz")


def test_zips_with_something_before_or_after_them_are_refused(tmp_path: Path) -> None:
    both = []
    for value in (1.0, 2.0):
        file = io.BytesIO()
        torch.save({"a": torch.tensor(value)}, file)
        both.append(file.getvalue())
    (tmp_path / "two.pt").write_bytes(b"".join(both))
    # Newer versions of Python find it out by themselves.
    with pytest.raises(
        lw.FileError, match=r"bytes come before the zip|the directory at the end of the zip cannot be read"
    ):
        lw.open(tmp_path / "two.pt")
    with zipfile.ZipFile(io.BytesIO(both[0])):
        data = bytearray(both[0])
    data[-2:] = (4).to_bytes(2, "little")
    (tmp_path / "comment.pt").write_bytes(bytes(data) + b"leaf")
    with pytest.raises(lw.FileError, match="has a comment"):
        lw.open(tmp_path / "comment.pt")


def test_pipes_and_paths_with_nulls_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(lw.FileError, match=r"it is not a file, but a pipe"):
        lw.open(tmp_path)
    with pytest.raises(lw.FileError, match=r"null"):
        lw.open("a\0b")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def _folders(tmp_path: Path) -> dict[str, list[str]]:
    """Checkpoints in folders, each with the names of its files."""
    folders = {name: tmp_path / name for name in ("shards", "adapter", "dcp", "file")}
    for folder in folders.values():
        folder.mkdir()
    lw.save({"a": torch.ones(40), "b": torch.ones(40)}, folders["shards"] / "model.safetensors", shard_size=200)
    lw.save({"a": torch.ones(4)}, folders["dcp"], format="dcp")
    lw.save({"a": torch.ones(4)}, folders["file"] / "model.safetensors")
    lw.save({"base_model.model.a.lora_A.weight": torch.ones(1, 4)}, folders["adapter"] / "adapter_model.safetensors")
    (folders["adapter"] / "adapter_config.json").write_text('{"r": 1, "lora_alpha": 1}')
    return {name: sorted(os.listdir(folder)) for name, folder in folders.items()}


@pytest.mark.parametrize("make", [_pipe, _socket])
def test_no_verb_waits_for_a_pipe_or_a_socket(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of a checkpoint in turn. Opening a pipe as a file would wait for a writer forever."""
    monkeypatch.chdir(tmp_path)
    tried = 0

    def merged(source: Path) -> Any:
        return lw.edit(tmp_path / "file", tmp_path / "out.safetensors", lora=source)

    for name, files_of_it in _folders(tmp_path).items():
        for file in files_of_it:
            path = tmp_path / name / file
            kept = path.read_bytes()
            path.unlink()
            make(path)
            for verb in (lw.open, lw.verify, merged):
                with suppress(lw.Error):
                    verb(tmp_path / name)
                with suppress(lw.Error):
                    verb(path)
                    pytest.fail(f"{path} was read")
            for url in (f"file://{path}", f"file://{path.parent}"):
                with suppress(lw.Error):
                    lw.open(url)
            path.unlink()
            path.write_bytes(kept)
            tried += 1
    assert tried >= 8


def test_one_function_opens_files() -> None:
    """`Disk.open` refuses pipes and devices. Others only create files, or open /dev/null or a list of the system."""
    allowed = {"files/sources/disk.py": 5, "cli/__init__.py": 2, "core/results/result.py": 1}
    source = Path(lw.__file__).parent
    for path in source.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "os.open", "io.open", "os.fdopen")
        ]
        name = path.relative_to(source).as_posix()
        assert len(calls) == allowed.get(name, 0), f"{name} opens a file by itself; use files.sources.disk"


def test_hostile_files_beside_a_checkpoint_are_not_opened(tmp_path: Path) -> None:
    torch.save(arrays(), tmp_path / "pytorch_model.bin")
    (tmp_path / "training_args.bin").write_bytes(files.in_zip(files.gadgets(tmp_path)["os.system 4"]))
    assert len(lw.open(tmp_path)) == 4


@pytest.mark.slow
def test_hostile_files_are_refused_with_little_memory_and_time(tmp_path: Path) -> None:
    """These files are opened in a process with little memory and time."""
    chosen = {
        **{f"z{n}": data for n, data in enumerate(files.strange_zips().values())},
        **{f"h{n}": data for n, data in enumerate(files.absurd_headers().values())},
        **{f"p{n}": files.in_zip(data) for n, data in enumerate(files.strange_pickles().values())},
        **{f"r{n}": files.in_zip(data) for n, data in enumerate(files.recursive_pickles().values())},
    }
    for name, data in chosen.items():
        (tmp_path / name).write_bytes(data)
    script = (
        "import sys, pathlib, leafwise as lw\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    try:\n"
        "        with lw.open(path) as t: t.text()\n"
        "    except lw.Error: pass\n"
        "print('done', 'torch' in sys.modules, 'numpy' in sys.modules)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        encoding="utf-8",
        preexec_fn=limit,
        env={"PYTHONPATH": str(REPOSITORY / "src")},
        check=False,
    )
    assert done.stdout.strip() == "done False False", done.stderr[-2000:]


@settings(
    max_examples=short_or_long(15, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_fuzzed_files_open_or_are_refused(data: st.DataObject, sound: dict[str, bytes], tmp_path: Path) -> None:
    """Every parser, with a range of bytes replaced, doubled or removed anywhere."""
    for whole in sound.values():
        at = data.draw(st.integers(0, len(whole) - 1))
        length = data.draw(st.integers(0, 40))
        middle = data.draw(st.one_of(st.binary(max_size=40), st.just(whole[at : at + length] * 2)))
        (tmp_path / "fuzzed").write_bytes(whole[:at] + middle + whole[at + length :])
        try_to_open(tmp_path / "fuzzed")


@settings(
    max_examples=short_or_long(100, 300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    start=st.sampled_from(
        [b"", b"GGUF\3\0\0\0", b"\x93NUMPY\x01\0", b"\x12\x01" + bytes(14), b"\x80\x02", b"PK\x03\x04", b"PK\x05\x06"]
    ),
    rest=st.binary(max_size=300),
)
def test_noise_is_refused(start: bytes, rest: bytes, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(start + rest)
    try_to_open(tmp_path / "noise")


@settings(
    max_examples=short_or_long(100, 400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    codes=st.lists(st.sampled_from([bytes([code]) for code in range(256)] + [b"K\x01", b"U\x01x", b"h\x00", b"q\x00"]))
)
def test_noise_of_opcodes_is_refused(codes: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(files.in_zip(b"\x80\x02" + b"".join(codes) + b"."))
    try_to_open(tmp_path / "noise")
