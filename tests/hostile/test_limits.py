"""Small files that demand much memory or work are opened or refused within the limits on bytes and steps; legitimate
files with very many items open."""

import gc
import io
import json
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.hostile import files
from tests.long import short_or_long

import leafwise as lw
from leafwise.cli import main
from leafwise.files.limits import MAX_BYTES, MAX_STEPS, Limits

REPOSITORY = Path(__file__).parents[2]

# -- pickles -------------------------------------------------------------------------------------------------


def _float(number: float) -> bytes:
    return b"G" + struct.pack(">d", number)


def _int(number: int) -> bytes:
    return b"J" + number.to_bytes(4, "little")


# The hash of a complex number is the hash of its real part plus 1,000,003 times that of its imaginary part: all of
# these have the same hash.
COLLIDING = [b"h\x00" + _float(-1_000_003.0 * k) + _float(float(k)) + b"\x86R" for k in range(1, 40_000)]
COMPLEX = b"\x80\x02c__builtin__\ncomplex\nq\x000"
HUNDRED_THOUSAND = range(1 << 20, (1 << 20) + 100_000)


def _text(text: bytes) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text


# Usually, small files have a fifth of the steps and bytes that are allowed by default.
FIFTH = short_or_long(5, 1)
MILLION = 1_000_000 // FIFTH

# Functions, because some of the pickles are large.
SMALL: dict[str, Callable[[], bytes]] = {
    "layouts of sparse tensors in each other": lambda: (
        b"\x80\x02ctorch._utils\n_rebuild_sparse_tensor\nq\x000Nq\x01" + b"0h\x00h\x01h\x01\x86Rq\x01" * 40 + b"."
    ),
    "a list that holds itself": lambda: b"\x80\x02]q\x00(" + b"h\x00" * 200_000 + b"e.",
    "a dict that holds itself": lambda: (
        b"\x80\x02}q\x00(" + b"".join(_int(k) + b"h\x00" for k in range(200_000)) + b"u."
    ),
    "keys that hash alike": lambda: COMPLEX + b"}(" + b"N".join(COLLIDING) + b"Nu.",
    "keys that hash alike, one by one": lambda: COMPLEX + b"}" + b"Ns".join(COLLIDING) + b"Ns.",
    "a set of what hashes alike": lambda: COMPLEX + b"c__builtin__\nset\n](" + b"".join(COLLIDING) + b"e\x85R.",
    "a frozen set of what hashes alike": lambda: b"\x80\x04" + COMPLEX[2:] + b"(" + b"".join(COLLIDING) + b"\x91.",
    "sets made again and again": lambda: (
        b"\x80\x02c__builtin__\nset\nq\x000]("
        + b"".join(map(_int, HUNDRED_THOUSAND))
        + b"eq\x010]("
        + b"h\x00h\x01\x85R" * 1000
        + b"e."
    ),
    "counters made again and again": lambda: (
        b"\x80\x02ccollections\nCounter\nq\x000}("
        + b"".join(_int(k) + b"N" for k in HUNDRED_THOUSAND)
        + b"uq\x010]("
        + b"h\x00h\x01\x85R" * 1000
        + b"e."
    ),
    "a call with very many arguments": lambda: (
        b"\x80\x02ccollections\ndefaultdict\nq\x000(" + b"N" * 100_000 + b"tq\x010" + b"h\x00h\x01R0" * 100_000 + b"N."
    ),
    "sets without end": lambda: b"\x80\x04](" + b"\x8f" * 4_000_000 + b"e.",
    "lists without end": lambda: b"\x80\x04](" + b"]" * 8_000_000 + b"e.",
    "marks without end": lambda: b"\x80\x04" + b"(" * 8_000_000 + b".",
    "a memo without end": lambda: (
        b"\x80\x02N" + b"".join(b"r" + k.to_bytes(4, "little") for k in range(1, 1 + 6 * MILLION)) + b"."
    ),
    "nothing, very often": lambda: b"\x80\x02" + b"N0" * 20_000_000 + b"N.",
    "text of wide letters": lambda: b"\x80\x02" + _text("\U0001f600".encode() * 20 * MILLION) + b".",
    "a long text meant often": lambda: b"\x80\x02" + _text(b"a" * 100_000) + b"q\x00](" + b"h\x00" * 50_000 + b"e.",
    "long keys of tuples": lambda: (
        b"\x80\x02"
        + _text(b"a" * 100_000)
        + b"q\x000}("
        + b"".join(b"(" + b"h\x00" * 60 + _int(k) + b"tN" for k in range(5000))
        + b"u."
    ),
}


def _safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def _gguf_string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _numbered(before: bytes, after: bytes, count: int) -> bytes:
    """The numbers below `count`, each of seven digits, between these bytes."""
    rows = np.empty((count, len(before) + 7 + len(after)), np.uint8)
    rows[:, : len(before)] = np.frombuffer(before, np.uint8)
    rows[:, len(before) + 7 :] = np.frombuffer(after, np.uint8)
    numbers = np.arange(count)
    for column in range(len(before) + 6, len(before) - 1, -1):
        rows[:, column] = numbers % 10 + ord("0")
        numbers //= 10
    return rows.tobytes()


ROW = b'":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
HEADERS: dict[str, Callable[[], bytes]] = {
    "lists in a header": lambda: _safetensors(b'{"a":[' + b"[]," * 7_000_000 + b"[]]}"),
    "arrays in a header": lambda: _safetensors(b"{" + _numbered(b'"', ROW + b",", 800_000)[:-1] + b"}"),
    "texts in a header": lambda: _safetensors(b'{"__metadata__":{' + _numbered(b'"', b'":"",', 4_000_000)[:-1] + b"}}"),
    "dots in a header": lambda: _safetensors(b"{" + _numbered(b'"', b"." * 199 + ROW + b",", 80_000)[:-1] + b"}"),
    "a long name in a header": lambda: _safetensors(b'{"' + "\U0001f600".encode() * 15_000_000 + b'":{}}'),
    "values in GGUF": lambda: (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 3_000_000)
        + _numbered(struct.pack("<Q", 7), struct.pack("<IB", 0, 1), 3_000_000)
    ),
    "arrays of arrays in GGUF": lambda: (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + _gguf_string(b"k")
        + struct.pack("<IIQ", 9, 9, 4_000_000)
        + struct.pack("<IQ", 0, 0) * 4_000_000
    ),
    "tensors in GGUF": lambda: (
        b"GGUF"
        + struct.pack("<IQQ", 3, 1_000_000, 0)
        + (_gguf_string(b"abcdefg") + struct.pack("<IQIQ", 1, 0, 0, 0)) * 1_000_000
        + bytes(64)
    ),
    "arrays in MXNet": lambda: (
        struct.pack("<QQQ", 0x112, 0, 4_000_000) + struct.pack("<Ii", 0xF993FAC8, 0) * 4_000_000 + struct.pack("<Q", 0)
    ),
}


def _pickled(value: object) -> bytes:
    return files.in_zip(pickle.dumps(value, protocol=2))


# Usually, legitimate files have a tenth of the items, and opening them may cost a tenth of what is allowed by default.
SHARE = short_or_long(10, 1)
MANY = 1_000_000 // SHARE


def _optimizer() -> object:
    state = {number: {"step": number, "a": 0.5, "b": 1.5, "c": -number} for number in range(MANY // 4)}
    return {"state": state, "param_groups": [{"params": list(range(MANY // 4)), "lr": 0.1}]}


def _many_arrays() -> bytes:
    rows = {
        f"layers.{k // 10}.experts.{k % 10}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * k, 4 * k + 4]}
        for k in range(150_000 // SHARE)
    }
    return _safetensors(json.dumps(rows).encode()) + bytes(600_000 // SHARE)


def _many_tensors() -> bytes:
    file = io.BytesIO()
    torch.save({f"layers.{number}.weight": torch.zeros(0) for number in range(20_000 // SHARE)}, file)
    return file.getvalue()


HONEST: dict[str, tuple[int, Callable[[], bytes]]] = {  # and how many leaves each has
    "names": (0, lambda: _pickled({f"key{number}": number for number in range(MANY)})),
    "numbers": (0, lambda: _pickled({7 * number + 3: number / 3 for number in range(MANY)})),
    "a list": (0, lambda: _pickled({"loss": [number / 3 for number in range(MANY)]})),
    "an optimizer": (0, lambda: _pickled(_optimizer())),
    "tensors": (20_000 // SHARE, _many_tensors),
    "arrays": (150_000 // SHARE, _many_arrays),
}

# Each line of its input is a path and limits; a child, forked for each, opens the file and writes a line.
SCRIPT = """
import json, os, resource, sys
import leafwise as lw
from leafwise.files import home  # once, not in every child
from leafwise.files.formats import detect
from leafwise.files.formats import gguf_file
from leafwise.files.formats import safetensors
from leafwise.files.formats import torch_zip
lw.open
for line in sys.stdin:
    if os.fork():
        _, status = os.wait()
        print(json.dumps(["ended", status]) if status else "", flush=True)
        continue
    resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    path, limits = json.loads(line)
    try:
        said = len(lw.open(path, **limits))
    except lw.FileError as error:
        said = str(error)
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
    print(json.dumps([said, int(peak) >> 10]), flush=True)
    os._exit(0)
"""
Opens = Callable[..., Any]


@pytest.fixture(scope="module")
def opened_elsewhere() -> Iterator[Opens]:
    """Returns the number of leaves in a file, or why it was refused, in a process with 700 MB of address space and a
    minute."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={"PYTHONPATH": str(REPOSITORY / "src")},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def opened(path: Path, share: int = FIFTH) -> Any:
            """With a part of the steps and bytes that are allowed by default."""
            limits = {"max_bytes": MAX_BYTES // share, "max_steps": MAX_STEPS // share}
            stdin.write(json.dumps([str(path), limits]) + "\n")
            stdin.flush()
            lines = [stdout.readline(), ""]
            if "ended" not in lines[0]:
                lines[1] = stdout.readline()
            assert lines[1] == "\n", (path, lines)
            said, megabytes = json.loads(lines[0])
            assert megabytes < 60 + 440 / share, path
            return said

        yield opened
        stdin.close()


@pytest.fixture
def made_and_opened(opened_elsewhere: Opens, tmp_path: Path) -> Opens:
    def opened(make: Callable[[], bytes], *share: int) -> Any:
        (tmp_path / "file").write_bytes(make())
        try:
            return opened_elsewhere(tmp_path / "file", *share)
        finally:
            (tmp_path / "file").unlink()

    return opened


@pytest.mark.slow
def test_small_pickles_take_little_memory_and_time(made_and_opened: Opens) -> None:
    said = {name: made_and_opened(lambda make=make: files.in_zip(make())) for name, make in SMALL.items()}
    assert {name for name, answer in said.items() if answer == 0} == {
        "a list that holds itself",
        "a dict that holds itself",
    }
    for name, answer in said.items():
        assert answer == 0 or "the pickle cannot be read: " in answer, (name, answer)
        if "hash" in name:
            assert "chosen to have colliding hashes" in answer, (name, answer)
    assert "a sparse tensor has the unknown layout" in said["layouts of sparse tensors in each other"]
    assert "lw.open(path, max_steps=…) or --max-steps" in said["nothing, very often"]
    assert "lw.open(path, max_bytes=…) or --max-bytes" in said["sets without end"]


def _says_how_to_allow_more(answer: Any) -> bool:
    return "if you trust the file, allow more with lw.open(path, max_" in str(answer)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADERS)
def test_large_headers_take_little_memory_and_time(name: str, made_and_opened: Opens) -> None:
    assert _says_how_to_allow_more(made_and_opened(HEADERS[name]))


def test_large_indexes_and_directories_take_little_memory_and_time(opened_elsewhere: Opens, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(b'{"weight_map":[' + b"[]," * 7_000_000 + b"[]]}")
    assert _says_how_to_allow_more(opened_elsewhere(tmp_path))
    with zipfile.ZipFile(tmp_path / "entries", "w") as archive:
        for number in range(1000):
            archive.writestr(zipfile.ZipInfo(f"{number}.npy" + "x" * 40_000), b"")
    assert _says_how_to_allow_more(opened_elsewhere(tmp_path / "entries"))


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_legitimate_files_with_a_million_items_open(name: str, made_and_opened: Opens) -> None:
    leaves, make = HONEST[name]
    assert made_and_opened(make, SHARE) == leaves


def test_the_limits_can_be_raised_for_a_file_that_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(3), "values": list(range(1000))}, path)
    for few in ({"max_steps": 500}, {"max_bytes": 20_000}):
        with pytest.raises(lw.FileError, match=f"lw.open\\(path, {next(iter(few))}=…\\)"):
            lw.open(path, **few)
    assert len(lw.open(path, max_steps=50_000, max_bytes=1_000_000)) == 1
    assert main(["show", str(path), "--max-steps", "500"]) == 1
    assert "reading it takes more than 500 steps of work" in capsys.readouterr().err
    assert main(["show", str(path), "--max-steps", "5000"]) == 0


@pytest.mark.parametrize("wrong", ["2GB", 0, -1, 1.5, float("nan"), True])
def test_limits_are_whole_numbers(wrong: Any, tmp_path: Path) -> None:
    path = lw.save({"a": torch.ones(1)}, tmp_path / "a.safetensors")
    for limit in ("max_bytes", "max_steps"):
        with pytest.raises(lw.QueryError, match=f"{limit}= takes a whole number above 0"):
            lw.open(path, **{limit: wrong})


# Objects that take memory, very many of them: none may be counted as much less than it takes.
KEEP = short_or_long(5_000, 20_000)
MADE = {
    "lists": b"](" + b"]" * KEEP + b"e.",
    "lists of one": b"](" + b"]Na" * KEEP + b"e.",
    "dicts of one": b"](" + b"}NNs" * KEEP + b"e.",
    "dicts of six": b"](" + (b"}(" + b"".join(b"K%cN" % k for k in range(6)) + b"u") * (KEEP // 6) + b"e.",
    "a dict": b"}(" + b"".join(_int(300 + k) + b"N" for k in range(KEEP)) + b"u.",
    "sets": b"\x80\x04](" + b"\x8f" * KEEP + b"e.",
    "a set": b"\x80\x04\x8f(" + b"".join(_int(300 + k) for k in range(KEEP)) + b"\x90.",
    "frozen sets": b"\x80\x04](" + b"(K\x01\x91" * KEEP + b"e.",
    "tuples": b"](" + b"NNN\x87" * KEEP + b"e.",
    "long tuples": b"](" + (b"(" + b"N" * 50 + b"t") * (KEEP // 50) + b"e.",
    "numbers": b"](" + _int(1 << 20) * KEEP + b"e.",
    "long numbers": b"](" + (b"\x8a\xff" + b"\x01" * 255) * KEEP + b"e.",
    "fractions": b"](" + _float(0.5) * KEEP + b"e.",
    "texts": b"](" + b"X\x02\0\0\0ab" * KEEP + b"e.",
    "texts of wide letters": b"](" + b"X\x04\0\0\0\xf0\x9f\x98\x80" * KEEP + b"e.",
    "bytes": b"](" + b"C\x02ab" * KEEP + b"e.",
    "a memo": b"N" + b"".join(b"r" + (300 + k).to_bytes(4, "little") for k in range(KEEP)) + b".",
    "calls": b"ccollections\nOrderedDict\nq\x000](" + b"h\x00)R" * KEEP + b"e.",
    "records": b"c__builtin__\nslice\nq\x000](" + b"h\x00NN\x86R" * KEEP + b"e.",
    "dtypes": b"cnumpy\ndtype\nq\x000](" + b"h\x00U\x02f8K\0K\x01\x87R" * KEEP + b"e.",
    "arrays": b"cnumpy.core.multiarray\n_reconstruct\nq\x000](" + b"h\x00)R" * KEEP + b"e.",
    "meta tensors": b"ctorch._utils\n_rebuild_meta_tensor_no_storage\nq\x000ctorch\nfloat32\nq\x010]("
    + b"h\x00(h\x01K\x02K\x03\x86K\x03K\x01\x86\x89tR" * KEEP
    + b"e.",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_the_memory_that_a_pickle_allocates_is_counted(name: str) -> None:
    from leafwise.files.pickles.torch_objects import TABLE
    from leafwise.files.pickles.unpickler import Unpickler

    data = b"\x80\x02" + MADE[name]
    limits = Limits()
    machine = Unpickler(data, TABLE, None, lambda at, cause: lw.FileError(cause), limits, names={})
    gc.collect()
    tracemalloc.start()
    try:
        kept = machine._run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del kept
    counted = limits.max_bytes - limits.bytes
    assert peak < 1.25 * counted + 20_000, f"{peak:,} bytes were taken, and {counted:,} counted"


SOME = short_or_long(5_000, 50_000)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[]," * SOME + b"[]]",
        b"[" + b"{}," * SOME + b"{}]",
        b"[" + b'{"a":1},' * SOME + b"{}]",
        b"[" + b"1.5," * SOME + b"1]",
        b"[" + b"123456789," * SOME + b"1]",
        b"[" + b'"ab",' * SOME + b'""]',
        b"{" + b",".join(b'"%d":%d' % (k, 1000 + k) for k in range(SOME)) + b"}",
        b"{" + b",".join(b'"%d%s' % (k, ROW) for k in range(SOME * 2 // 5)) + b"}",
        b'["' + "\U0001f600".encode() * SOME + b'"]',
    ],
)
def test_the_memory_that_json_allocates_is_counted(text: bytes) -> None:
    from leafwise.files.limits import json_cost

    gc.collect()
    tracemalloc.start()
    try:
        kept = json.loads(text.decode())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del kept
    assert peak < 1.25 * json_cost(text) + 20_000


def test_a_list_that_contains_itself_is_visited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.homes.containers import ContainersHome

    visits = []
    visit = ContainersHome.visit
    monkeypatch.setattr(ContainersHome, "visit", lambda self, obj: visits.append(1) or visit(self, obj))
    loop: list[Any] = [np.ones(2)]
    loop += [loop] * 1000
    tree = lw.tree(loop)
    assert len(tree) == 1
    assert len(visits) == 1


@pytest.mark.slow
def test_windows_over_one_storage_are_compared_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.core.home import Memory
    from leafwise.core.memory import ops

    pairs = []
    relation = ops.relation
    monkeypatch.setattr(ops, "relation", lambda *given: pairs.append(1) or relation(*given))
    windows = [ops.Region(n, Memory(4 * n, (500,), (4,), 4, "float32"), False) for n in range(1500)]
    merged, overlaps = ops.compare(windows)
    assert not merged
    assert [len(overlap.members) for overlap in overlaps] == [1500]
    assert len(pairs) < 102_000  # of 700,000 that overlap


def test_a_missing_shard_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.files.folders import shards

    weights = {f"w{number}": f"model-{number}.safetensors" for number in range(50)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    times = []
    read = shards._read_index
    monkeypatch.setattr(shards, "_read_index", lambda *given: times.append(1) or read(*given))
    for path in (tmp_path, tmp_path / "model.safetensors.index.json", tmp_path / "model.safetensors"):
        times.clear()
        with pytest.raises(lw.FileError, match="model-0"):
            lw.open(path)
        assert len(times) == 1


# -- arrays that are larger than what is stored ---------------------------------------------------------------


def _peak(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_compressed_arrays_are_never_all_in_memory(tmp_path: Path) -> None:
    path, nbytes = tmp_path / "a.npz", 80_000_000
    np.savez_compressed(path, a=np.zeros((2500, 4000)), turned=np.asfortranarray(np.arange(12.0).reshape(3, 4)))
    only = lambda: lw.open(path).select("a")  # noqa: E731
    assert only()["a"].nbytes == nbytes
    chunk = 45_000_000
    assert _peak(lambda: lw.stats(only())) < chunk
    assert _peak(lambda: lw.verify(path)) < chunk
    assert _peak(lambda: lw.diff(only(), only())) < chunk
    assert _peak(lambda: lw.save(only(), tmp_path / "b.safetensors")) < chunk
    assert _peak(lambda: main(["convert", str(path), str(tmp_path / "c.safetensors")])) < chunk
    assert _peak(lambda: only()["a"].numpy()) < 1.2 * nbytes
    target = {"a": np.ones((2500, 4000)), "turned": np.ones((3, 4))}
    assert _peak(lambda: lw.load(target, path)) < 1.2 * nbytes
    assert not target["a"].any()
    assert np.array_equal(target["turned"], np.arange(12.0).reshape(3, 4))


def test_compressed_arrays_are_read_in_any_order(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 2000)).astype(">f4")
    np.savez_compressed(tmp_path / "a.npz", a=values, turned=np.asfortranarray(values), number=np.float64(7))
    tree = lw.open(tmp_path / "a.npz")
    for index in (
        (slice(200, 300),),
        (slice(0, 10),),
        (slice(5, 250), 3),
        (-1,),
        (),
        (slice(None, None, -7), slice(3)),
    ):
        assert np.array_equal(tree["a"].numpy(index), values[index])
        assert np.array_equal(tree["turned"].numpy(index), values[index])
    assert tree["number"].numpy() == 7
    copy = pickle.loads(pickle.dumps(tree))
    assert np.array_equal(copy["a"].numpy(), values)


@pytest.mark.slow
def test_damage_in_a_compressed_array_is_found_before_its_last_value_is_returned(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.random.default_rng(0).integers(0, 9, 3_000_000))
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    whole[whole.rindex(b"PK\x01\x02") + 16] ^= 1  # the checksum
    (tmp_path / "a.npz").write_bytes(whole)
    target = {"a": np.zeros(3_000_000, "int64")}
    for verb in (lw.stats, lw.verify, lambda path: lw.load(target, path), lambda path: lw.open(path)["a"].numpy()):
        with pytest.raises(lw.FileError, match="checksum"):
            verb(tmp_path / "a.npz")
    assert not target["a"].any()


def test_tensors_that_repeat_stored_bytes_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pt"
    torch.save({"huge": torch.ones(1).expand(1 << 18, 1 << 18), "small": torch.ones(1).expand(3, 4)}, path)
    tree = lw.open(path)
    assert tree["huge"].shape == (1 << 18, 1 << 18)
    assert np.array_equal(tree["small"].numpy(), np.ones((3, 4)))
    with pytest.raises(
        lw.Unsupported, match=r"4 bytes are stored, and its values would take 274,877,906,944.*max_bytes=…"
    ):
        tree["huge"].numpy()
    assert "274,877,906,944" in str(lw.stats(path).json())
    assert main(["convert", str(path), str(tmp_path / "b.safetensors")]) == 1
    assert "huge in the source: it is an expanded tensor: 4 bytes are stored" in capsys.readouterr().err
    with pytest.raises(lw.Error, match="cannot save huge"):
        lw.save(path, tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()
    assert lw.open(path, max_bytes=1 << 40)["huge"].numpy((0, slice(2))).tolist() == [1.0, 1.0]


def test_many_tensors_that_repeat_stored_bytes_are_counted_together(tmp_path: Path) -> None:
    torch.save({f"{number}": torch.ones(1).expand(10_000_000 + number) for number in range(8)}, tmp_path / "a.pt")
    kinds = [type(leaf) for leaf in lw.open(tmp_path / "a.pt")]
    assert len(kinds) == 8
    refused = 0
    for leaf in lw.open(tmp_path / "a.pt"):
        try:
            leaf.numpy((slice(2),))
        except lw.Unsupported:
            refused += 1
    assert refused == 6  # 100 MB in all


def test_sparse_arrays_that_would_fill_memory_are_refused_by_name(tmp_path: Path) -> None:
    def shaped(*sizes: int) -> bytes:
        return struct.pack(f"<i{len(sizes)}q", len(sizes), *sizes)

    header = struct.pack("<QQQIi", 0x112, 0, 1, 0xF993FAC9, 1) + shaped(0, 1 << 10) + shaped(1 << 28, 1 << 10)
    data = header + struct.pack("<iii", 1, 0, 0) + struct.pack("<i", 6) + shaped(0) + struct.pack("<Q", 0)
    (tmp_path / "a.params").write_bytes(data)
    with pytest.raises(lw.Unsupported, match=r"as a dense array it would take 1,099,511,627,776"):
        lw.open(tmp_path / "a.params")["0"].numpy()


# -- older files, and arrays without values ------------------------------------------------------------------


def test_an_older_file_opens_wherever_the_first_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the first block that is read cuts every kind of opcode in two."""
    state = {
        "weight": torch.arange(6.0).reshape(2, 3),
        "half": torch.ones(2, dtype=torch.float16),
        "values": [None, True, 1, 300, -5, 1 << 40, 1 << 300, 0.5, "text", "é", b"bytes", (1,), (1, 2), (1, 2, 3, 4)],
        "numbers": np.arange(3),
        "set": {1, 2},
        7: {"nested": {}},
    }
    path = tmp_path / "a.pt"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    for first in range(20, len(path.read_bytes()), short_or_long(3, 1)):
        monkeypatch.setattr("leafwise.files.formats.pickle_files._FIRST", first)
        with lw.open(path) as tree:
            assert np.array_equal(tree["weight"].numpy(), torch.arange(6.0).reshape(2, 3).numpy()), first
            assert tree["set"] == {1, 2}


def test_an_older_file_opens_where_a_name_crosses_64_kib(tmp_path: Path) -> None:
    for padding in range((1 << 16) - 700, (1 << 16) - 300, 7):
        torch.save(
            {"text": "x" * padding, "weight": torch.ones(2)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False
        )
        with lw.open(tmp_path / "a.pt") as tree:
            assert tree["weight"].numpy().tolist() == [1.0, 1.0]


def test_arrays_that_were_never_given_values_are_refused(tmp_path: Path) -> None:
    unbuilt = b"cnumpy.core.multiarray\n_reconstruct\n)R"
    parameter = b"ctorch._utils\n_rebuild_parameter\n" + unbuilt + b"\x88}\x87R"
    for data, where in (
        (b"}X\x01\0\0\0a" + unbuilt + b"s.", "under 'a' "),
        (b"}X\x01\0\0\0a](" + unbuilt + b"es.", "under 0 "),
        (unbuilt + b".", ""),
        (b"}X\x01\0\0\0a" + parameter + b"s.", "under 'a' "),
    ):
        (tmp_path / "a.pt").write_bytes(files.in_zip(b"\x80\x02" + data))
        with pytest.raises(lw.FileError, match=f"the array {where}was never given its values"):
            lw.open(tmp_path / "a.pt")


def test_few_values_that_expand_to_many_are_refused(tmp_path: Path) -> None:
    many: object = [1, 2, 3, 4]
    for _ in range(9):
        many = [many] * 4
    (tmp_path / "a.pt").write_bytes(_pickled({"many": many}))
    with pytest.raises(
        lw.FileError, match=r"refers to the same values so often that they would expand to more than 25,000,000 bytes"
    ):
        lw.open(tmp_path / "a.pt")
    shared = {"betas": (0.9, 0.999), "names": ["a", "b"]}
    (tmp_path / "b.pt").write_bytes(_pickled({"groups": [shared] * 10_000}))
    assert len(lw.open(tmp_path / "b.pt").scalars) == 20_000


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def test_attributes_of_attributes_are_not_followed_forever(tmp_path: Path) -> None:
    """Each name would contain the one before."""
    text = b"X\xc8\x00\x00\x00" + b"a" * 200
    names = _name("builtins", "getattr") + b"q\x000" + text + b"q\x010" + _name("x", "Foo") + b"q\x020"
    (tmp_path / "a.pkl").write_bytes(b"\x80\x02" + names + b"h\x00h\x02h\x01\x86Rq\x020" * 10_000 + b"h\x02.")
    with pytest.raises(lw.FileError, match="attributes of attributes"):
        lw.open(tmp_path / "a.pkl")


@pytest.mark.parametrize("state", [b"h\x01h\x01\x86", b"h\x01"], ids=["merged", "shared"])
def test_a_state_that_many_objects_share_is_counted_for_each(state: bytes, tmp_path: Path) -> None:
    keys = b"".join(b"X\x05\x00\x00\x00" + f"{number:05}".encode() + b"N" for number in range(20_000))
    shared = _name("x", "Foo") + b"q\x000}(" + keys + b"uq\x010](" + (b"h\x00)\x81" + state + b"b") * 15_000 + b"e."
    (tmp_path / "a.pkl").write_bytes(b"\x80\x02" + shared)
    with pytest.raises(lw.FileError, match="steps of work"):
        lw.open(tmp_path / "a.pkl")
