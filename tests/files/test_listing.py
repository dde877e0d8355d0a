"""Headers and names that C code lists give the same trees, errors and costs as without it."""

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.kernels.test_cpu import of_the_library

import leafwise as lw
from leafwise.core.dotted import MAX_DOTS, VirtualNode, split
from leafwise.files import open_file, stored_file
from leafwise.files.formats import safetensors
from leafwise.files.limits import header_cost, json_cost, names_cost
from leafwise.files.stored_file import ListedFile
from leafwise.kernels import library as c_library
from leafwise.kernels import listing

ROW = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are listed by C code, too."""
    monkeypatch.setattr(safetensors, "LONG", 0)
    monkeypatch.setattr(stored_file, "MANY", 0)


@contextmanager
def without_library() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listing, "_library", lambda: None)
        yield


def write(path: Path, header: Any, size: int | None = None) -> Path:
    """A file with this header: text as it is, or rows that are made of names, dtypes and shapes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    if size is None:
        size = max(
            (row["data_offsets"][1] for name, row in json.loads(raw).items() if name != "__metadata__"), default=0
        )
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(size))
    return path


def rows(names: "list[str]", shape: "tuple[int, ...]" = (2,), dtype: str = "U8") -> dict[str, Any]:
    nbytes = int(np.prod(shape, dtype=int)) * {"U8": 1, "F32": 4}[dtype]
    offsets = ((number * nbytes, (number + 1) * nbytes) for number in range(len(names)))
    return {
        name: {"dtype": dtype, "shape": list(shape), "data_offsets": list(place)}
        for name, place in zip(names, offsets, strict=True)
    }


def outcome(path: Path) -> Any:
    """Everything that opening a file leads to: an error, or a tree, and what it costs."""
    try:
        file = open_file(path)
        tree = lw.tree(file)
    except lw.Error as error:
        return type(error), str(error)
    costs = file.source.limits.bytes, file.source.limits.steps
    values = {str(leaf.path): leaf.numpy().tolist() for leaf in tree}
    entries = [leaf.path.entries for leaf in tree]
    nodes = [(node.prefix, node.children) for node in tree.columns.node_objects if isinstance(node, VirtualNode)]
    children = [(prefix, [name for name, _ in below]) for prefix, below in nodes]
    tree.close()
    return tree.json(), tree.text(full=True), tree.text(), list(file.content), values, entries, children, costs


def assert_equal_without_library(path: Path) -> None:
    with without_library():
        expected = outcome(path)
    assert outcome(path) == expected


@of_the_library
def test_a_plain_file_is_listed_by_c_code(tmp_path: Path) -> None:
    file = open_file(write(tmp_path / "m", rows(["a.b.weight", "a.b.bias", "c"]) | {"__metadata__": {"format": "pt"}}))
    assert isinstance(file, ListedFile)
    with without_library():
        assert not isinstance(open_file(tmp_path / "m"), ListedFile)


NAMES = [
    "a.0.w",
    "a.0.b",
    "a.1.w",
    "c",
    "a.1.b",
    "a",
    "c.d.e.f",
    "a.0.w.scale",
    "d..e",
    "d.",
    " ",
    "a.0",
    "é",
    ".x",
    "",
]
ODD = {
    "nothing": b"{}",
    "nothing but metadata": b'{"__metadata__":{"a":"b"}}',
    "every name": json.dumps(rows(NAMES), ensure_ascii=False).encode(),
    "escaped names": json.dumps(rows(["\u00e9", "a\nb", 'a"b', "a\\b"])).encode(),
    "names with brackets": json.dumps(rows(["a[0]", "b{1}", "c,d", "]", "}", ":"])).encode(),
    "names of fields": json.dumps(rows(["dtype", "shape", "data_offsets", "a.dtype"])).encode(),
    "spaces": b' \n{ "a" : {\t"shape" :[ 2 ] , "data_offsets": [ 0 , 2 ], "dtype": "U8" } }  \r\n ',
    "spaces after colons": b'{ "a": {\t"shape":[ 2 ] , "data_offsets": [ 0 , 2 ], "dtype": "U8" } }  \r\n ',
    "another order": b'{"a":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}}',
    "metadata last": b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"x":"y"}}',
    "metadata with escapes": json.dumps(rows(["a"]) | {"__metadata__": {"x": 'a"}{\\', "y": "\n"}}).encode(),
    "metadata with unicode": json.dumps(rows(["a"]) | {"__metadata__": {"x": "é"}}).encode(),
    "metadata of numbers": json.dumps(rows(["a"]) | {"__metadata__": {"x": 1}}).encode(),
    "metadata of objects": json.dumps(rows(["a"]) | {"__metadata__": {"x": {"y": "z"}}}).encode(),
    "metadata that is a list": json.dumps(rows(["a"]) | {"__metadata__": ["x"]}).encode(),
    "metadata that is not JSON": b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"x" "y"}}',
    "metadata with the words of rows": json.dumps(rows(["a"]) | {"__metadata__": {"dtype": "x"}}).encode(),
    "empty metadata": json.dumps(rows(["a"]) | {"__metadata__": {}}).encode(),
    "metadata twice": b'{"__metadata__":{},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{}}',
    "a name twice": json.dumps(rows(["a", "b"])).replace('"b"', '"a"').encode(),
    "a field twice": b'{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
    "a field too many": b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}}',
    "no shape": b'{"a":{"dtype":"U8","data_offsets":[0,2]}}',
    "three offsets": b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}}',
    "a gap": json.dumps({"a": ROW, "b": ROW | {"data_offsets": [3, 5]}}).encode(),
    "an overlap": json.dumps({"a": ROW, "b": ROW | {"data_offsets": [1, 3]}}).encode(),
    "not in order": json.dumps({"b": ROW | {"data_offsets": [2, 4]}, "a": ROW}).encode(),
    "stop before start": json.dumps({"a": ROW, "b": ROW | {"data_offsets": [2, 0]}}).encode(),
    "too short": json.dumps({"a": ROW | {"shape": [3]}}).encode(),
    "one of equal shapes too short": json.dumps(rows(["a", "b"]) | {"c": ROW | {"data_offsets": [4, 5]}}).encode(),
    "an unknown dtype": json.dumps({"a": ROW | {"dtype": "U9"}}).encode(),
    "no dtype": json.dumps({"a": ROW | {"dtype": ""}}).encode(),
    "a dtype with a space": json.dumps({"a": ROW | {"dtype": "U8 "}}).encode(),
    # If the fields of a row were separated by spaces, this would be four floats.
    "a dtype with numbers": json.dumps({"a": {"dtype": "F32 16 2", "shape": [1], "data_offsets": [0, 2]}}).encode(),
    "a packed dtype": json.dumps({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}).encode(),
    "dtypes and shapes that differ": json.dumps(
        {
            "a": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]},
            "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]},
            "c": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]},
            "d": {"dtype": "U8", "shape": [], "data_offsets": [12, 13]},
            "e": {"dtype": "U8", "shape": [0, 5], "data_offsets": [13, 13]},
            "f": {"dtype": "F32", "shape": [1, 1], "data_offsets": [13, 17]},
        }
    ).encode(),
    "a fraction": b'{"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}}',
    "an exponent": b'{"a":{"dtype":"U8","shape":[2e0],"data_offsets":[0,2]}}',
    "a sign": b'{"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}',
    "a zero in front": b'{"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}',
    "nineteen digits": b'{"a":{"dtype":"U8","shape":[0,1000000000000000000],"data_offsets":[0,0]}}',
    "a size beyond 64 bits": b'{"a":{"dtype":"U8","shape":[0,99999999999999999999],"data_offsets":[0,0]}}',
    "a product beyond 64 bits": b'{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}',
    "very many axes": json.dumps({"a": ROW | {"shape": [1] * 100 + [2]}}).encode(),
    "a comma too many": b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},}',
    "a comma in a shape too many": b'{"a":{"dtype":"U8","shape":[2,],"data_offsets":[0,2]}}',
    "text at the end": b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}x',
    "a list": b'[{"a":1}]',
    "a control character": b'{"a\x01":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
    "not UTF-8": b'{"a\xff":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
    "as many dots as are split": json.dumps(rows(["x." * MAX_DOTS + "y", "x." * MAX_DOTS + "z", "x.y"])).encode(),
    "a dot more": json.dumps(rows(["x." * MAX_DOTS + "y", "x." * MAX_DOTS + "x.y"])).encode(),
    "prefixes of each other": json.dumps(rows([".".join("a" * count) for count in (9, 3, 200, 1, 150)])).encode(),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_odd_headers_lead_to_the_same_with_and_without_c_code(odd: str, tmp_path: Path) -> None:
    for size in (2, 4, 17, 30):  # bytes of data: too few, too many, or just enough
        assert_equal_without_library(write(tmp_path / "m", ODD[odd], size))


def test_every_truncation_leads_to_the_same_with_and_without_c_code(tmp_path: Path) -> None:
    raw = json.dumps(rows(["a.b", "a.c"]) | {"__metadata__": {"x": 'y"}'}}).encode()
    for length in range(len(raw)):
        assert_equal_without_library(write(tmp_path / "m", raw[:length], 4))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_headers_lead_to_the_same_with_and_without_c_code(data: st.DataObject, tmp_path: Path) -> None:
    raw = bytearray(json.dumps(rows(["a.b", "a.c", "d"], (1, 2)) | {"__metadata__": {"x": "y"}}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"1", b" ", b".", b"a", b"\xc3"]
            )
        )
    assert_equal_without_library(write(tmp_path / "m", bytes(raw), 6))


PARTS = st.sampled_from(["a", "b", "0", "1", "weight", "layers", "x" * 20])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(PARTS, min_size=1, max_size=6).map(".".join), unique=True, min_size=1, max_size=40))
@example(["a.b", "c", "a.d"])
@example(["a", "a.a", "a.a.a"])
def test_names_are_split_as_without_c_code(names: list[str]) -> None:
    items = dict(zip(names, range(len(names)), strict=True))
    text = "".join(f"{name}\n" for name in names)
    split_names = listing.dotted_names(text, len(names))
    if listing._library() is None:
        assert split_names is None
        return
    assert split_names is not None
    columns = split_names.columns()
    order = columns.order or list(range(len(names)))
    walked: list[tuple[Any, ...]] = []
    listed: list[tuple[Any, ...]] = []
    numbers = {"": 0}

    def visit(node: VirtualNode) -> None:
        for name, value in node.children:
            if isinstance(value, VirtualNode):
                numbers[value.prefix] = len(numbers)
                listed.append((numbers[node.prefix], name, value.prefix))
                visit(value)
            else:
                walked.append((numbers[node.prefix], name, value))

    visit(split(items.items()))
    assert list(zip(columns.row_nodes, columns.row_names, order, strict=True)) == walked
    prefixes = [columns.prefixes.prefix_of(node) for node in range(1, len(numbers))]
    assert list(zip(columns.parents, columns.node_names, prefixes, strict=True)) == listed
    cost = names_cost(names, 1 << 60)
    assert cost == 300 * len(names) + 400 * split_names.nodes + 2 * split_names.prefix_length


@of_the_library
@pytest.mark.parametrize("names", [["a\nb"], ["é"], [".a"], ["x." * (MAX_DOTS + 1)], []])
def test_unusual_names_are_left_to_python(names: list[str]) -> None:
    assert listing.dotted_names("".join(f"{name}\n" for name in names), len(names)) is None


@of_the_library
def test_no_more_nodes_are_made_than_are_allowed() -> None:
    assert listing.dotted_names("a.b.c\na.d.e\n", 2, most=2) is None
    assert listing.dotted_names("a.b.c\na.d.e\n", 2, most=3) is not None


@of_the_library
def test_names_whose_hashes_collide_are_given_up() -> None:
    """Somebody who knew the seed could choose names like these; comparing each with all others would take minutes."""
    factor, mask, seed = 0x9E3779B97F4A7C15, (1 << 64) - 1, 12345
    names, number = [], 0
    while len(names) < 50_000:
        number += 1
        first = f"{number:08}".encode()
        state = ((seed ^ 16 ^ int.from_bytes(first, "little")) * factor) & mask
        second = ((state ^ state >> 32) ^ 0x5555555555555555).to_bytes(8, "little")
        if b"\n" not in second and b"." not in second:
            names.append(first + second)
    text = b"\n".join(names) + b"\n"
    columns = [listing._Column("i", len(names)) for _ in listing._COLUMNS]
    pointers = listing._Listing(*(column.address for column in columns))
    facts = listing._SplitFacts()

    def call(seed: int) -> int:
        arguments = (len(names), 0, seed, ctypes.byref(pointers), ctypes.byref(facts))
        return int(listing._library().leafwise_split_names(text, len(text), *arguments))

    assert call(seed) < 0
    assert call(seed + 1) == 0  # no nodes: without that seed, the names are as good as any others
    assert facts.parts == len(names)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=10),
    st.none() | st.dictionaries(st.text('ab"\\{}[],:', max_size=5), st.text('ab"\\{}[],:', max_size=5), max_size=3),
    st.sampled_from([None, (",", ":"), (", ", ":")]),
)
def test_a_header_costs_the_same_as_any_json(
    shapes: list[list[int]], metadata: dict[str, str] | None, separators: tuple[str, str] | None
) -> None:
    header = {
        f"{number}.w": {"dtype": "U8", "shape": shape, "data_offsets": [0, 1]} for number, shape in enumerate(shapes)
    }
    kept = json.dumps(metadata, separators=separators).encode() if metadata is not None else b""
    whole = header if metadata is None else {"__metadata__": metadata, **header}
    text = json.dumps(whole, separators=separators).encode()
    commas = sum(max(len(shape) - 1, 0) for shape in shapes)
    assert header_cost(len(text), len(header), commas, kept) == json_cost(text)


def test_what_a_listed_file_contains_can_be_reached_and_walked_again(tmp_path: Path) -> None:
    names = ["a.0.w", "b.w", "a.0.b", "a.1.w"]
    path = write(tmp_path / "m", rows(names, (1,)))
    raw = bytearray(path.read_bytes())
    raw[-4:] = bytes([1, 2, 3, 4])
    path.write_bytes(raw)
    with lw.open(path) as tree:
        assert [str(leaf.path) for leaf in tree] == ["a.0.w", "a.0.b", "a.1.w", "b.w"]
        assert [leaf.numpy().tolist() for leaf in tree] == [[1], [3], [4], [2]]
        assert tree["a"]["1.w"].numpy().tolist() == [4]
        assert [node.path.names for node in tree.nodes][1:] == [("a",), ("a", "0"), ("a", "1"), ("b",)]
        [part] = [lw.tree(node.value) for node in tree.nodes if str(node.path) == "a"]
        assert [str(leaf.path) for leaf in part] == ["0.w", "0.b", "1.w"]
        assert tree.select("a.*.w").counts.leaves == 2


def test_other_formats_and_shards_are_split_the_same_way(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **{name: np.zeros(2) for name in ("b.0.w", "a", "b.1.w", "b.0.c")})
    shards = tmp_path / "shards"
    shards.mkdir()
    write(shards / "model-00001-of-00002.safetensors", rows(["b.0.w", "a.x"]))
    write(shards / "model-00002-of-00002.safetensors", rows(["b.1.w", "b.0.c"]))
    for path in (tmp_path / "m.npz", shards):
        with without_library():
            expected = lw.tree(path).json(), lw.tree(path).text(full=True)
        assert (lw.tree(path).json(), lw.tree(path).text(full=True)) == expected


@of_the_library
def test_a_listing_that_costs_too_much_is_refused_with_the_same_message(tmp_path: Path) -> None:
    path = write(tmp_path / "m", rows([f"a.{number}.b.c" for number in range(300)]))
    spent = {}
    for most in range(20_000, 1_000_000, 20_000):
        outcomes = []
        for library in (listing._library(), None):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(listing, "_library", lambda library=library: library)
                try:
                    outcomes.append(str(len(lw.open(path, max_bytes=most))))
                except lw.FileError as error:
                    outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        spent[outcomes[0]] = most
    assert len(spent) > 2
    assert max(spent, key=spent.__getitem__) == "300"


@of_the_library
def test_c_code_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_library, "load", lambda: object())
    assert listing._library() is None
    monkeypatch.setattr(c_library, "load", lambda: None)
    assert listing._library() is None
