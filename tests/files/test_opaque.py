"""Objects of classes that leafwise does not load are kept as descriptions; the arrays beside them stay readable."""

import collections
import dataclasses
import datetime
import enum
import functools
import io
import json
import pickle
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.long import short_or_long
from torch import nn

import leafwise as lw
from leafwise.cli import main
from leafwise.files.limits import MAX_BYTES, MAX_STEPS
from leafwise.results import Opaque, OpaqueObject


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    width: int = 8
    table: Any = None


class Mapping(dict[str, Any]):
    """A class like Lightning's AttributeDict."""


class Sequence(list[Any]):
    """A class like PyTorch's lists of shards."""


def saved(tmp_path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, tmp_path / "model.pt", **options)
    return tmp_path / "model.pt"


@contextmanager
def module_called(name: str) -> Iterator[types.ModuleType]:
    """A module that exists only while a checkpoint is written, as if its package were not installed afterwards."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        yield module
    finally:
        del sys.modules[name]


OBJECTS = {
    "datetime.datetime": datetime.datetime(2026, 1, 31, 12),
    "datetime.timedelta": datetime.timedelta(seconds=3),
    f"{__name__}.Color": Color.RED,
    f"{__name__}.Config": Config(),
    "functools.partial": functools.partial(print, 1),
    "_io.BytesIO": io.BytesIO(b"abc"),
    "builtins.print": print,
    "builtins.set": {Color.RED},
    "builtins.slice": slice(1, 2),
}


@pytest.mark.parametrize("class_name", OBJECTS)
@pytest.mark.parametrize("zipped", [True, False])
def test_an_unknown_object_is_a_plain_value_with_the_name_of_its_class(
    class_name: str, zipped: bool, tmp_path: Path
) -> None:
    content = {"w": torch.arange(6.0), "extra": {"x": OBJECTS[class_name]}}
    with lw.open(saved(tmp_path, content, _use_new_zipfile_serialization=zipped)) as t:
        assert f"x = <{class_name}, not loaded>" in t.text()
        assert t.opaque == [OpaqueObject(lw.Path("extra.x"), class_name)]
        assert isinstance(t["extra.x"], Opaque)
        assert t["w"].numpy().tolist() == [0, 1, 2, 3, 4, 5]
        assert json.loads(json.dumps(t.json()))["values"]["extra.x"] == f"<{class_name}, not loaded>"


@pytest.mark.parametrize("class_name", sorted(OBJECTS.keys() - {"builtins.slice"}))  # slices were always allowed
def test_strict_refuses_it_by_name(class_name: str, tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(2), "x": OBJECTS[class_name]})
    short = class_name.replace("builtins", "(builtins|__builtin__)") if class_name != "builtins.set" else "."
    with pytest.raises(lw.FileError, match=short):
        lw.open(path, strict=True)
    assert main(["show", str(path), "--strict"]) == 1
    assert main(["show", str(path)]) == 0


def test_nothing_is_imported(tmp_path: Path) -> None:
    with module_called("absent_package") as module:
        module.Thing = type("Thing", (), {"__module__": "absent_package"})  # type: ignore[attr-defined]
        thing = module.Thing()
        thing.table, thing.cfg = torch.arange(3.0), {"lr": 0.1}
        path = saved(tmp_path, {"thing": thing, "w": torch.ones(2)})
    script = f"import sys, leafwise as lw; t = lw.open({str(path)!r}); print(t.opaque[0].class_name, len(t))\n"
    script += "print(sorted({'torch', 'numpy', 'absent_package'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["absent_package.Thing 2", "[]"]


def test_arrays_inside_unknown_objects_are_leaves(tmp_path: Path) -> None:
    table = torch.randn(3, 2)
    content = {
        "config": Config(table=table),
        "mapping": Mapping(a=torch.ones(2), note="x"),
        "list": Sequence([torch.zeros(3), 5]),
        "deep": Config(table=[{"inner": Config(table=torch.full((2,), 7.0))}]),
        "partial": functools.partial(print, torch.ones(4)),
        "queue": collections.deque([torch.ones(1), torch.ones(2)], 5),
    }
    with lw.open(saved(tmp_path, content)) as t:
        assert np.array_equal(t["config.table"].numpy(), table.numpy())
        assert t["mapping.a"].shape == (2,)
        assert t["mapping.note"] == "x"
        assert t["list.0"].shape == (3,)
        assert t["deep.table.0.inner.table"].numpy().tolist() == [7, 7]
        assert t["queue.1"].shape == (2,)
        assert {leaf.size for leaf in t if str(leaf.path).startswith("partial")} == {4}
        assert {kind.rpartition(".")[2] for _, kind in t.opaque} == {"Config", "Mapping", "Sequence", "partial"}
        assert all(leaf.path.fetch(t.columns.node_objects[0]) is not None for leaf in t)


def test_state_dicts_of_unknown_mappings_are_split_at_their_dots(tmp_path: Path) -> None:
    state = Mapping({"layer.weight": torch.ones(2, 3), "layer.bias": torch.ones(2)})
    with lw.open(saved(tmp_path, {"model": state})) as t:
        assert [str(leaf.path) for leaf in t] == ["model.layer.weight", "model.layer.bias"]


@pytest.mark.parametrize("kind", [dict, Mapping])
@pytest.mark.parametrize("key", ["a", "a.b"])
def test_dotted_keys_stay_whole_beside_a_plain_value_at_one_of_their_prefixes(
    kind: type[dict[str, Any]], key: str, tmp_path: Path
) -> None:
    with lw.open(saved(tmp_path, {"x": kind({"a.b.c": torch.ones(2), key: 3})})) as t:
        [(path, _)] = t.scalars.items()
        assert t[path] == 3
        assert t['x."a.b.c"'].shape == (2,)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.ReLU()
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.loose = torch.arange(3.0)
        self.grid = [torch.ones(1), torch.ones(2)]
        self.itself = [self]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_model_is_the_tree_of_the_live_model(zipped: bool, tmp_path: Path) -> None:
    model = Net()
    live = lw.tree(model)
    with lw.open(saved(tmp_path, model, _use_new_zipfile_serialization=zipped)) as t:
        own = [leaf for leaf in t if leaf.persistent]
        kept = [leaf for leaf in live if leaf.persistent]
        assert [(str(a.path), a.kind, a.shape) for a in own] == [(str(b.path), b.kind, b.shape) for b in kept]
        assert [a.trainable for a in own] == [b.trainable if b.kind == "parameter" else None for b in kept]
        assert [tie.leaf.paths for tie in t.ties] == [tie.leaf.paths for tie in live.ties]
        types_by_path = {str(node.path): node.type for node in t.nodes}
        assert (types_by_path["act"], types_by_path["head"]) == ("ReLU", "Linear")
        assert t.counts.parameters == live.counts.parameters
        assert {str(leaf.path) for leaf in t if not leaf.persistent} == {"mask", "loose", "grid.0", "grid.1"}
        assert [class_name for _, class_name in t.opaque] == [f"{__name__}.Net"]


def test_a_pickled_model_is_measured_compared_loaded_from_and_converted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    path = saved(tmp_path, {"model": model, "epoch": 3})
    other = Net()
    lw.load(other, path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert "leaves, all the same" in lw.diff(path, {"model": model, "epoch": 3}).text()
    assert lw.stats(path)["model.embed.weight"].count == 20
    assert main(["convert", str(path), str(tmp_path / "out.safetensors"), "--rename", r"^model\.="]) == 0
    lw.load(Net(), tmp_path / "out.safetensors")
    assert lw.save(lw.open(path), tmp_path / "saved.safetensors")
    assert lw.open(tmp_path / "saved.safetensors").counts.parameters == lw.tree(model).counts.parameters


def test_a_file_of_one_object_shows_its_attributes(tmp_path: Path) -> None:
    with lw.open(saved(tmp_path, Config(width=12))) as t:
        assert t["width"] == 12
        assert len(t) == 0


def test_an_object_that_contains_itself_is_shown_once(tmp_path: Path) -> None:
    config = Config(table=torch.ones(2))
    config.width = config  # type: ignore[assignment]
    alone = Config()
    alone.width = [alone]  # type: ignore[assignment]
    with lw.open(saved(tmp_path, {"a": config, "b": config, "c": alone})) as t:
        assert len(t) == 1
        assert "c = <" in t.text()
        t.json()


def test_an_object_in_a_container_that_contains_itself_is_listed_even_if_that_is_also_in_an_object(
    tmp_path: Path,
) -> None:
    around: dict[str, Any] = {"when": datetime.date(2026, 1, 1)}
    around["itself"] = around
    with lw.open(saved(tmp_path, {"a": Mapping(around=around, w=torch.ones(2)), "b": around})) as t:
        assert [(str(path), name) for path, name in t.opaque] == [
            ("a", f"{__name__}.Mapping"),
            ("a.around.when", "datetime.date"),
        ]
        assert t["a"].opaque == t.opaque[:1]


@pytest.mark.slow
def test_a_very_deep_object_without_arrays_is_refused_within_the_limits(tmp_path: Path) -> None:
    opening = b"cm\nC\n)\x81}U\x01a"
    # A depth of a million exceeds the usual limits, which takes seconds.
    many = short_or_long(100_000, 1_000_000)
    limits = {"max_steps": MAX_STEPS * many // 1_000_000, "max_bytes": MAX_BYTES * many // 1_000_000}
    for depth, options, reason in (
        (many, limits, "steps of work|bytes of memory"),
        (many // 10, {}, "nested more than"),
    ):
        (tmp_path / "deep.pkl").write_bytes(b"\x80\x02" + opening * depth + b"N" + b"sb" * depth + b".")
        with pytest.raises(lw.FileError, match=reason):
            lw.open(tmp_path / "deep.pkl", **options)
    shallow = b"\x80\x02" + opening * 90 + b"N" + b"sb" * 90 + b"."
    (tmp_path / "shallow.pkl").write_bytes(shallow)
    assert lw.open(tmp_path / "shallow.pkl").opaque[0].class_name == "m.C"


def test_names_of_classes_are_escaped_and_lead_nowhere(tmp_path: Path) -> None:
    data = b"\x80\x04}(\x8c\x01a\x8c\x07../../x\x8c\x06\x1b[31mC\x93)\x81\x8c\x01b" + b"K\x01u."
    (tmp_path / "odd.pkl").write_bytes(data)
    with lw.open(tmp_path / "odd.pkl") as t:
        assert "\x1b" not in t.text() + t._repr_html_() + repr(t["a"]) + str(t["a"])
        assert "../../x" in t.text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.pkl"]


def test_an_opaque_value_is_neither_loaded_nor_saved(tmp_path: Path) -> None:
    path = saved(tmp_path, {"model": nn.Linear(2, 2).state_dict(), "when": datetime.date(2026, 1, 1)})
    target = {"model": nn.Linear(2, 2), "when": None}
    with pytest.raises(lw.LoadError, match=r"when is an object of class datetime.date .* leave when out"):
        lw.load(target, path)
    assert target["when"] is None
    with pytest.raises(lw.WalkError, match=r"cannot save when: it is an object of class datetime.date"):
        lw.save(lw.open(path), tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
    lw.load({"model": target["model"]}, path)


def test_opaque_values_are_compared_by_what_the_files_say(tmp_path: Path) -> None:
    for name, day in (("a", 1), ("b", 1), ("c", 2)):
        torch.save({"w": torch.ones(1), "when": datetime.date(2026, 1, day)}, tmp_path / name)
    changed = {name: lw.diff(tmp_path / "a", tmp_path / name) for name in "bc"}
    assert "1 plain value, the same" in changed["b"].text().splitlines()[-1]
    assert "1 changed" in changed["c"].text().splitlines()[-1]


PLAIN = {
    "deque": collections.deque([1, 2], 3),
    "sets": {(1, 2), (3, 4)},
    "keys": {1: "int", "1": "text", 0.5: "float", None: "none", (1, "a"): 2},
    "numbers": {np.float32(0.5): 1, "scalar": np.int64(7), "text": np.str_("hallo"), "complex": np.complex64(1 + 2j)},
    "size": torch.Size([2, 3]),
    "range": range(3),
    "big": {2**63: 1},
    "namespace": types.SimpleNamespace(a=1),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("protocol", [2, 4])
def test_values_of_the_standard_library_are_read(name: str, protocol: int, tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.ones(1), name: PLAIN[name]}, pickle_protocol=protocol)
    with lw.open(path) as t:
        assert not t.opaque
        t.text()
        if name in ("deque", "sets", "range"):
            assert t[name] == PLAIN[name]


def test_keys_that_are_objects_are_named_after_them(tmp_path: Path) -> None:
    by_color = {Color.RED: 1, Color.BLUE: 2, nn.Linear: 3, ((1, 2), 3): 4, "x": 5}
    with lw.open(saved(tmp_path, {"w": torch.ones(1), "by": by_color})) as t:
        assert t["by.x"] == 5
        shown = t.text()
        assert f'"{__name__}.Color(1)" = 1' in shown
        assert '"torch.nn.modules.linear.Linear" = 3' in shown


def test_numpy_arrays_of_text_and_objects(tmp_path: Path) -> None:
    content = {
        "text": np.array(["a", "bc"]),
        "objects": np.array([torch.ones(2), "x", None], dtype=object),
        "numbers": np.arange(3, dtype=">f4"),
        "fields": np.zeros(2, dtype=[("a", "f4"), ("b", "i8")]),
    }
    with lw.open(saved(tmp_path, content)) as t:
        assert "text = <numpy.ndarray, not loaded>" in t.text()
        assert t["objects.0"].shape == (2,)
        assert t["numbers"].numpy().tolist() == [0, 1, 2]
        assert "fields = <numpy.ndarray, not loaded>" in t.text()


def test_tensors_that_consist_of_others_are_shown_as_their_parts(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    sparse = torch.eye(3).to_sparse()
    with lw.open(saved(tmp_path, {"nested": nested, "sparse": sparse, "w": torch.ones(2)})) as t:
        assert t["nested.values"].size == 5
        assert t["sparse.parts.1"].size == 3


def test_the_dtensor_of_a_single_process_is_an_array(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    was_initialized = dist.is_initialized()  # by another test
    if not was_initialized:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        whole = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
        path = saved(tmp_path, {"model": {"w": whole, "p": nn.Parameter(whole)}, "step": 3})
    finally:
        if not was_initialized:
            dist.destroy_process_group()
    with lw.open(path) as t:
        assert t["model.w"].numpy().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert t["model.p"].shape == (4, 2)
        assert t["step"] == 3


def test_a_long_array_in_a_pickle_stays_in_the_file(tmp_path: Path) -> None:
    arrays = {f"w{number}": np.random.default_rng(number).random(200_000) for number in range(12)}
    arrays["fortran"] = np.asfortranarray(np.arange(20_000.0).reshape(100, 200))
    for protocol in (3, 4, 5):
        path = tmp_path / f"{protocol}.pkl"
        path.write_bytes(pickle.dumps({"arrays": arrays, "tail": list(range(1000))}, protocol=protocol))
        with lw.open(path, max_bytes=6_000_000) as t:
            for name, array in arrays.items():
                assert np.array_equal(t[f"arrays.{name}"].numpy(), array)
            assert np.array_equal(t["arrays.w3"].numpy(slice(5, 9)), arrays["w3"][5:9])
            assert t["tail"] == list(range(1000))


def test_a_pickle_is_read_through_windows_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.files.pickles import pickle_bytes

    content = {
        "text": ["ü" * number for number in range(60)],
        "bytes": b"x" * 70_000,
        "numbers": [*range(500), 1.5, 2**70, -1],
        "nested": [[{"a": (1, 2, 3)}] * 20],
        "array": np.arange(40_000.0),
        "when": datetime.datetime(2026, 1, 1),
    }
    for protocol in range(2, 6):
        path = tmp_path / f"{protocol}.pkl"
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        for window in (17, 64, 1000, 1 << 20):
            monkeypatch.setattr(pickle_bytes, "_WINDOW", window)
            with lw.open(path) as t:
                assert t["numbers"] == content["numbers"]
                assert t["text"] == content["text"]
                assert t["nested.0.3.a"] == (1, 2, 3)
                assert t["array"].numpy()[-1] == 39_999
                assert t["when"].class_name == "datetime.datetime"


@pytest.mark.parametrize("cut", [1, 5, 40, 1000])
def test_a_pickle_that_is_cut_off_is_refused(cut: int, tmp_path: Path) -> None:
    data = pickle.dumps({"a": np.arange(10_000.0), "b": list(range(100))})
    (tmp_path / "cut.pkl").write_bytes(data[:-cut])
    with pytest.raises(lw.FileError, match=r"ends early|beyond|not valid"):
        lw.open(tmp_path / "cut.pkl")


def test_pickles_of_tensors_hold_a_file_in_a_file(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    state = {"weight": weight, "view": weight[1:3], "big": torch.randn(300, 300), "half": weight.bfloat16()}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(state))
    with lw.open(tmp_path / "a.pkl") as t:
        for name, value in state.items():
            assert np.array_equal(t[name].numpy().astype("float32"), value.float().numpy())


def test_several_pickles_in_one_file_are_a_list(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": np.ones(2)}) + pickle.dumps({"b": np.ones(3)}))
    with lw.open(tmp_path / "a.pkl") as t:
        assert [str(leaf.path) for leaf in t] == ["0.a", "1.b"]


@pytest.mark.parametrize("protocol", range(6))
def test_each_of_several_pickles_has_a_memo_of_its_own(protocol: int, tmp_path: Path) -> None:
    values: list[Any] = [["one", "x"], ["shared", "shared"], {"k": ("a", "a")}]
    (tmp_path / "a.pkl").write_bytes(b"".join(pickle.dumps(value, protocol) for value in values))
    with lw.open(tmp_path / "a.pkl") as t:
        assert [t["0"], t["1"], t["2.k"]] == [["one", "x"], ["shared", "shared"], ("a", "a")]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_older_format_of_pytorch_opens_in_every_protocol(protocol: int, tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    for value in ({"epoch": 3, "text": "é"}, {"w": shared, "v": shared[2:], "epoch": 3}):
        torch.save(value, tmp_path / "a.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=False)
        with lw.open(tmp_path / "a.pt") as t:
            assert "before 1.6" in str(t.select("**") if len(t) else t)
            assert t["epoch"] == 3
            for leaf in t:
                assert torch.equal(torch.from_numpy(leaf.numpy().copy()), value[str(leaf.path)])


def test_text_of_python_2_is_read_as_torch_load_reads_it(tmp_path: Path) -> None:
    data = b"\x80\x02}q\x00(U\x06gr\xc3\xb6\xc3\x9fU\x02\xc3\xa9U\x01bS'a\\xc3\\xa9\\n'\nU\x01cU\x01\xe9u."
    (tmp_path / "a.pkl").write_bytes(data)
    with lw.open(tmp_path / "a.pkl") as t:
        assert [t["größ"], t["b"], t["c"]] == ["é", "aé\n", "é"]  # the last one is in latin-1


@pytest.mark.parametrize("numbers", [np.array([0xA9C3], "<u2"), np.array([0xC3A9], "<u2"), np.array([1.5, -2.0])])
def test_arrays_of_python_2_keep_their_bytes(numbers: Any, tmp_path: Path) -> None:
    raw, code = numbers.tobytes(), f"{numbers.dtype.kind}{numbers.dtype.itemsize}".encode()
    data = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K"
        + bytes([len(numbers)])
        + b"\x85cnumpy\ndtype\nU" + bytes([len(code)]) + code
        + b"K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK"
        + b"\x00tb\x89U" + bytes([len(raw)]) + raw + b"tb."
    )  # fmt: skip
    (tmp_path / "a.pkl").write_bytes(b"\x80\x02}U\x01w" + data[2:-1] + b"s.")
    with lw.open(tmp_path / "a.pkl") as t:
        assert t["w"].numpy().tolist() == numbers.tolist()


def test_pickles_of_python_2_open(tmp_path: Path) -> None:
    # What cPickle of Python 2 wrote for {"w": numpy.array([1., 2.]), "old": an object of an old class}.
    data = (
        b"\x80\x02}q\x01(U\x01wq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05U\x01b"
        b"q\x06\x87q\x07Rq\x08(K\x01K\x02\x85q\tcnumpy\ndtype\nq\nU\x02f8q\x0bK\x00K\x01\x87q\x0cRq\r(K\x03U\x01<q\x0eNNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0fb\x89U\x10\x00\x00\x00\x00\x00\x00\xf0?\x00\x00\x00\x00\x00\x00\x00"
        b"@q\x10tq\x11bU\x03oldq\x12(iold_module\nOldClass\nq\x13}q\x14U\x01aK\x01sbu."
    )
    (tmp_path / "a.pkl").write_bytes(data)
    with lw.open(tmp_path / "a.pkl") as t:
        assert t["w"].numpy().tolist() == [1, 2]
        assert t["old"].class_name == "old_module.OldClass"


@pytest.mark.slow
def test_many_records_that_share_a_value_are_compared_quickly(tmp_path: Path) -> None:
    shared = list(range(50_000))
    for name in "ab":
        content = {f"k{number}": functools.partial(print, shared) for number in range(2_000)}
        torch.save({"w": torch.ones(1), **content}, tmp_path / name)
    started = time.process_time()
    assert "2,000 plain values, all the same" in lw.diff(tmp_path / "a", tmp_path / "b").text()
    assert time.process_time() - started < 20  # a hang guard, not a measurement


def test_very_many_classes_are_refused(tmp_path: Path) -> None:
    data = b"\x80\x02](" + b"".join(b"cm\nC%d\n" % number for number in range(30_000)) + b"e."
    (tmp_path / "a.pkl").write_bytes(data)
    with pytest.raises(lw.FileError, match="refers to more than 20,000 classes and functions"):
        lw.open(tmp_path / "a.pkl")


def test_a_quantized_model_is_not_saved_without_its_weights(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)), {nn.Linear})
        torch.save(model, tmp_path / "q.pt")
    with pytest.raises(lw.WalkError, match="packed by PyTorch's quantization"):
        lw.save(lw.open(tmp_path / "q.pt"), tmp_path / "q.safetensors")


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: Any = None
        self.lin = nn.Linear(3, 2)
        self.cache = self.lin.weight.data


def test_an_attribute_that_shares_the_memory_of_a_parameter_does_not_hide_it(tmp_path: Path) -> None:
    with lw.open(saved(tmp_path, Cached())) as t:
        assert t["lin.weight"].kind == "parameter"
        assert t.counts.parameters == 8


def test_tensors_that_are_attributes_of_tensors_are_leaves(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.master = torch.full((4,), 7.0)  # type: ignore[attr-defined]
    with lw.open(saved(tmp_path, {"w": weight, "storage": torch.ones(3).untyped_storage()})) as t:
        assert t["w.master"].numpy().tolist() == [7] * 4
        assert t["w.data"].shape == (3,)
        assert t["storage"].class_name == "torch.storage.TypedStorage"


def test_a_tensor_of_an_unknown_dtype_does_not_hide_the_others(tmp_path: Path) -> None:
    odd = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with lw.open(saved(tmp_path, {"odd": odd, "w": torch.ones(2)})) as t:
        assert t["w"].numpy().tolist() == [1, 1]
        assert t["odd"].dtype.startswith("float4")


def test_joblib_arrays_of_objects_and_text_do_not_hide_the_others(tmp_path: Path) -> None:
    import joblib

    content = {
        "objects": np.array([{"a": np.ones(2)}, "x"], dtype=object),
        "text": np.array(["ab", "c"]),
        "numbers": np.arange(5.0),
    }
    joblib.dump(content, tmp_path / "model.joblib")
    with lw.open(tmp_path / "model.joblib") as t:
        assert t["numbers"].numpy().tolist() == [0, 1, 2, 3, 4]
        assert "text = <numpy.ndarray, not loaded>" in t.text()
        assert t["objects.0.a"].shape == (2,)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("content", [(np.ones(2), 3), {"w": np.ones(2)}, [np.ones(2)]])
def test_pickles_of_every_protocol_open(protocol: int, content: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    with lw.open(tmp_path / "a.pkl") as t:
        assert [leaf.size for leaf in t] == [2]


# -- keys that differ, but have the same text ------------------------------------------------------------------

SAME_TEXTS: list[tuple[Any, Any]] = [
    (Path("w"), "w"),
    (torch.float32, "torch.float32"),
    (torch.device("cpu"), "cpu"),
    (collections.OrderedDict, "collections.OrderedDict"),
    (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
    ((Path("w"), 1), ("w", 1)),
    (frozenset({Path("w")}), frozenset({"w"})),
    (Path("cpu"), torch.device("cpu")),
    (1, "1"),
]


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("keys", SAME_TEXTS, ids=range(len(SAME_TEXTS)))
def test_keys_that_have_the_same_text_are_told_apart(
    keys: tuple[Any, Any], turned: bool, protocol: int, tmp_path: Path
) -> None:
    ordered = keys[::-1] if turned else keys
    for between in ({}, {f"k{number}": None for number in range(1_500)}):  # a pickle writes 1,000 items at once
        arrays = {key: np.full(2, keys.index(key)) for key in ordered}
        content = {ordered[0]: arrays[ordered[0]], **between, ordered[1]: arrays[ordered[1]]}
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(content, protocol))
        with lw.open(tmp_path / "a.pkl") as t:
            assert sorted(int(leaf.numpy()[0]) for leaf in t) == [0, 1]
            if keys[1] in ("w", "cpu"):  # text keeps its name
                assert t[keys[1]].numpy()[0] == 1
    items = [{*keys}, {"s": frozenset(keys)}, [*keys]]
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(items, protocol))
    shown = str(lw.open(tmp_path / "b.pkl").columns.scalars)
    assert shown.count("not loaded") or all(str(key) in shown for key in keys)


def test_paths_in_values_are_text_when_they_are_loaded(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "path": Path("a/b"), "list": [Path("c"), {"d": Path("e")}]}, tmp_path / "a.pt")
    target: Any = {"w": torch.zeros(2), "path": "", "list": ["", {"d": ""}]}
    loaded = lw.load(target, tmp_path / "a.pt")
    assert [loaded["path"], loaded["list"]] == ["a/b", ["c", {"d": "e"}]]
    assert {type(value) for value in (loaded["path"], loaded["list"][0], loaded["list"][1]["d"])} == {str}
