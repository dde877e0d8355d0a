"""Hostile files: each ends in a FileError, or opens and hurts nobody; within a second and 256 MB; and nothing runs."""

import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.files.writers import WRITERS, arrays
from tests.hostile import files

import leafwise as lw

REPOSITORY = Path(__file__).parents[2]


def try_to_open(path: Path, read: bool = True) -> str:
    """Opens a file, walks it, draws it and reads every value; what it came to."""
    try:
        with lw.open(path) as tree:
            tree.text()
            tree.json()
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
        said = try_to_open(path)
        assert "in the pickle" in said or "makes no sense" in said, (name, said)
        assert not executed(tmp_path), name
        assert "\x1b" not in said
    assert not {"webbrowser", "pty", "code", "timeit"} & (set(sys.modules) - before)


def test_gadgets_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(files.in_zip(files.gadgets(tmp_path)["os.system 4"]))
    with pytest.raises(
        lw.FileError, match=r"at byte \d+: in the pickle: it asks for os.system, which leafwise neither knows nor"
    ):
        lw.open(tmp_path / "model.pt")


@pytest.mark.parametrize("wrap", [files.in_zip, files.in_legacy], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", files.strange_pickles())
def test_strange_pickles(name: str, wrap: Any, tmp_path: Path) -> None:
    data = files.strange_pickles()[name]
    path = tmp_path / "model.pt"
    path.write_bytes(wrap(data, **{"0": bytes(16)}) if wrap is files.in_zip else wrap(data))
    started = time.process_time()
    said = try_to_open(path)
    assert said != "opened" or name == "a billion laughs", name
    assert time.process_time() - started < 2


@pytest.mark.parametrize("name", files.recursive_pickles())
def test_recursive_and_deep_pickles(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(files.in_zip(files.recursive_pickles()[name]))
    started = time.process_time()
    try_to_open(path)
    assert time.process_time() - started < 5  # a hang guard, not a measurement


@pytest.mark.parametrize("name", files.strange_zips())
def test_strange_zips(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(files.strange_zips()[name])
    assert try_to_open(path) != "opened" or name == "no entries"


@pytest.mark.parametrize("name", files.absurd_headers())
def test_absurd_headers(name: str, tmp_path: Path) -> None:
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


def test_truncated_at_every_byte(sound: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "cut"
    for name, data in sound.items():
        # Every byte of the first and the last part, which hold the headers, and samples between.
        ends = {*range(min(len(data), 700)), *range(max(0, len(data) - 300), len(data)), *range(0, len(data), 97)}
        for end in sorted(ends):
            if name == "GGUF" and end > len(data) - 32:
                continue  # only what fills up the last tensor is lost
            path.write_bytes(data[:end])
            assert try_to_open(path, read=False) != "opened", (name, end)


def test_flipped_bits(sound: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "flipped"
    for name, data in sound.items():
        for at in {*range(0, min(len(data), 600), 2), *range(0, len(data), 53)}:
            changed = bytearray(data)
            changed[at] ^= 1 << (at % 8)
            path.write_bytes(changed)
            assert "is not named" not in try_to_open(path), name  # opens, or is refused; nothing else


def test_damaged_folders(tmp_path: Path) -> None:
    """The pickle of a distributed checkpoint, and an index of shards, cut and flipped."""
    for name, file in (("DCP", ".metadata"), ("sharded safetensors", "model.safetensors.index.json")):
        folder = tmp_path / name.replace(" ", "-")
        WRITERS[name](folder, arrays())
        whole = (folder / file).read_bytes()
        for end in range(0, len(whole), 3):
            (folder / file).write_bytes(whole[:end])
            assert try_to_open(folder, read=False) != "opened", (name, end)
        for at in range(0, len(whole), 2):
            changed = bytearray(whole)
            changed[at] ^= 1 << (at % 8)
            (folder / file).write_bytes(changed)
            try_to_open(folder)


def test_gadgets_in_a_distributed_checkpoint(tmp_path: Path) -> None:
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


def test_hostile_files_in_a_small_process(tmp_path: Path) -> None:
    """What must not take memory or time, in a process that has neither."""
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
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_fuzzed_files_open_or_are_refused(data: st.DataObject, sound: dict[str, bytes], tmp_path: Path) -> None:
    """Every parser, with a run of bytes replaced, doubled or taken out anywhere."""
    for whole in sound.values():
        at = data.draw(st.integers(0, len(whole) - 1))
        length = data.draw(st.integers(0, 40))
        middle = data.draw(st.one_of(st.binary(max_size=40), st.just(whole[at : at + length] * 2)))
        (tmp_path / "fuzzed").write_bytes(whole[:at] + middle + whole[at + length :])
        try_to_open(tmp_path / "fuzzed")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.sampled_from(
        [b"", b"GGUF\3\0\0\0", b"\x93NUMPY\x01\0", b"\x12\x01" + bytes(14), b"\x80\x02", b"PK\x03\x04", b"PK\x05\x06"]
    ),
    rest=st.binary(max_size=300),
)
def test_noise_is_refused(start: bytes, rest: bytes, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(start + rest)
    try_to_open(tmp_path / "noise")


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    codes=st.lists(st.sampled_from([bytes([code]) for code in range(256)] + [b"K\x01", b"U\x01x", b"h\x00", b"q\x00"]))
)
def test_noise_of_opcodes_is_refused(codes: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(files.in_zip(b"\x80\x02" + b"".join(codes) + b"."))
    try_to_open(tmp_path / "noise")
