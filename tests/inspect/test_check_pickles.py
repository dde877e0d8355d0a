"""`lw.check` lists what other programs would call if they loaded a file."""

import collections
import datetime
import importlib
import json
import os
import pickle
import pkgutil
import subprocess
import textwrap
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.hostile import files
from tools import suspect_names
from torch import nn

import leafwise as lw
from leafwise.cli import main
from leafwise.files.pickles import pickle_calls


class Call:
    """Calls a function with some arguments when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


DANGEROUS = {
    "os": (os.system, "true"),
    "eval": (eval, "1"),
    "subprocess": (subprocess.run, ["true"]),
    "runpy": (__import__("runpy").run_path, "x"),
    "torch.hub": (torch.hub.load, "x"),
    "open": (open, "x"),
    "import": (__import__, "x"),
    "socket": (__import__("socket").create_connection, "x"),
    "remove": (os.remove, "x"),
}


@pytest.mark.parametrize("name", DANGEROUS)
@pytest.mark.parametrize("zipped", [True, False])
def test_functions_that_run_code_are_errors(name: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    content = {"w": torch.ones(2), "extra": {"x": Call(*DANGEROUS[name])}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    findings = lw.check(path)
    assert [(finding.code, finding.path) for finding in findings.errors] == [("LW701", "extra.x")]
    called = DANGEROUS[name][0]
    assert called.__name__ in findings.errors[0].message
    assert main(["check", str(path), "--fail-on", "error"]) == 1


@pytest.mark.parametrize("protocol", [2, 4])
def test_every_known_gadget_is_reported_or_refused(protocol: int, tmp_path: Path) -> None:
    harmless = {"functools", "pickle of", "dtype"}
    for name, data in files.gadgets(tmp_path).items():
        if not name.endswith(str(protocol)):
            continue
        (tmp_path / "model.pt").write_bytes(files.in_zip(data))
        try:
            findings = lw.check(tmp_path / "model.pt")
        except lw.Error:
            continue
        assert findings.of("LW70") or name.split()[0] in harmless, name


def test_unknown_classes_are_warnings_by_package_and_known_ones_are_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(2), "when": datetime.date(2026, 1, 1), "call": Call(textwrap.dedent, "1")}, path)
    findings = lw.check(path)
    assert [(finding.code, finding.level, finding.path) for finding in findings] == [
        ("LW702", "warning", "call"),
        ("LW703", "note", "when"),
    ]
    assert "would import textwrap and call textwrap.dedent" in findings[0].message
    assert main(["check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"error": 0, "warning": 1, "note": 1}
    assert main(["check", str(path), "--fail-on", "error"]) == 0


def test_ordinary_checkpoints_have_no_such_findings(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    for zipped in (True, False):
        torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
        assert not lw.check(tmp_path / "model.pt").of("LW7")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"w": np.ones(3), "t": torch.ones(2)}))
    assert not lw.check(tmp_path / "model.pkl").of("LW7")
    lw.save(model, tmp_path / "model.safetensors")
    assert not lw.check(tmp_path / "model.safetensors").of("LW7")


def test_a_pickle_that_cannot_be_read_still_says_what_it_would_call(tmp_path: Path) -> None:
    data = pickle.dumps([Call(os.system, "true"), 1])
    for damaged in (data[:-1], data[:-1] + b"\xff."):
        (tmp_path / "model.pkl").write_bytes(damaged)
        with pytest.raises(lw.FileError, match=r"do not load it with other programs: it would call posix\.system"):
            lw.check(tmp_path / "model.pkl")


def test_arrays_of_objects_are_notes_because_their_pickles_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(2), objects=np.array([1, "x"], dtype=object))
    findings = lw.check(tmp_path / "a.npz", select="LW7")
    assert [(finding.code, finding.level, finding.path) for finding in findings] == [("LW702", "note", "objects")]


def test_the_page_lists_every_name() -> None:
    page = suspect_names.PAGE.read_text("utf-8")
    for label, names in suspect_names.LISTS.items():
        text = page.partition(f"<!-- {label} -->")[2].partition(f"<!-- /{label} -->")[0]
        assert text.strip() == suspect_names.listed(names), f"run python -m tools.suspect_names: {label}"


def test_no_name_is_both_dangerous_and_harmless() -> None:
    assert not pickle_calls.DANGEROUS_NAMES & pickle_calls.HARMLESS_NAMES
    for name in pickle_calls.DANGEROUS_NAMES:
        assert pickle_calls.danger(*name.rsplit(".", 1)) == "dangerous", name
    for name in pickle_calls.HARMLESS_NAMES:
        assert pickle_calls.danger(*name.rsplit(".", 1)) == "harmless", name


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("random", "_os.system"),
        ("enum", "bltns.eval"),
        ("pathlib", "os.system"),
        ("torch.nn.modules.module", "torch.hub.load"),
        ("torch.nn.functional", "importlib.import_module"),
        ("collections", "OrderedDict.fromkeys.__globals__"),
        ("_operator", "methodcaller"),
        ("_posixsubprocess", "fork_exec"),
        ("pathlib", "Path.write_text"),
        ("pathlib._local", "PosixPath.touch"),
        ("torch.utils.bottleneck.__main__", "run_env_analysis"),
        ("uuid", "_get_command_stdout"),
    ],
)
def test_a_name_that_leads_through_a_harmless_module_is_dangerous(module: str, name: str) -> None:
    assert pickle_calls.danger(module, name) == "dangerous"


def test_an_attribute_that_is_looked_up_counts_as_a_name(tmp_path: Path) -> None:
    reaches_everything = Call(getattr, datetime.date.today, "__globals__")
    torch.save({"w": torch.ones(2), "x": Call(getattr, datetime.date, "fromtimestamp")}, tmp_path / "odd.pt")
    assert not lw.check(tmp_path / "odd.pt").of("LW701")
    assert lw.check(tmp_path / "odd.pt").of("LW702")
    torch.save({"w": torch.ones(2), "x": reaches_everything}, tmp_path / "bad.pt")
    assert "__globals__" in lw.check(tmp_path / "bad.pt").of("LW701")[0].message


@pytest.mark.parametrize("name", ["typing.get_origin", "pathlib.PurePath", "omegaconf.OmegaConf.load"])
def test_only_listed_names_of_a_module_are_harmless(name: str) -> None:
    module, _, rest = name.partition(".")
    assert pickle_calls.danger(module, rest) == "unknown"


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def call(function: bytes, *args: bytes) -> bytes:
    return function + b"(" + b"".join(args) + b"tR"


GETATTR, LOAD = name("builtins", "getattr"), name("torch.storage", "_load_from_bytes")
PASSED_ON = {
    "to partial": call(name("functools", "partial"), GETATTR, name("collections", "Counter")),
    "in a list": call(name("builtins", "map"), b"](" + GETATTR + b"e"),
    "as a keyword": name("functools", "partial") + b")}" + text("x") + LOAD + b"s\x92",
    "as a state": name("functools", "partial") + b")\x81(" + LOAD + b")}Ntb",
    "to a tensor": call(name("torch._tensor", "_rebuild_from_type_v2"), LOAD, name("torch", "Tensor"), b")", b"}"),
    "to a generator": call(name("numpy.random._pickle", "__generator_ctor"), b"C\x01x", LOAD),
    "from the memo": GETATTR + b"q\x00" + call(b"0" + name("builtins", "map"), b"h\x00", b"]"),
}


@pytest.mark.parametrize("how", PASSED_ON)
def test_a_function_that_is_passed_on_can_be_called_with_anything(how: str, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04" + PASSED_ON[how] + b".")
    assert any("passed on to be called" in found.message for found in lw.check(tmp_path / "a.pkl").of("LW701"))


def test_an_object_that_the_pickle_makes_and_calls_is_an_error(tmp_path: Path) -> None:
    made = call(call(name("functools", "partial"), name("builtins", "print")), text("hello"))
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04" + made + b".")
    assert "makes and then calls" in lw.check(tmp_path / "a.pkl").of("LW701")[0].message


def test_numbers_of_the_memo_are_counted_as_python_counts_them(tmp_path: Path) -> None:
    """A number that is set twice counts once."""
    numbers = b"K\x01q\x01K\x02q\x00K\x03q\x01"
    program = numbers + name("posix", "getpid") + b"\x940h\x02)R."
    assert pickle.loads(b"\x80\x04" + program) == os.getpid()
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04" + program)
    with lw.open(tmp_path / "a.pkl") as t:
        assert t.columns.node_objects[0].content.class_name == "posix.getpid"
        assert t.columns.node_objects[0].content.args == ()


def test_names_are_judged_before_they_are_cut(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04" + call(name("collections", "OrderedDict." + "a." * 150 + "b")) + b".")
    assert lw.check(tmp_path / "a.pkl").of("LW701")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, None], ids=["npz", "compressed npz", "npy"])
@pytest.mark.parametrize("is_structured", [False, True])
def test_pickles_in_arrays_of_objects_are_read(save: Any, is_structured: bool, tmp_path: Path) -> None:
    for content, level in ((Call(os.getpid), "error"), (datetime.date(2026, 1, 1), "note"), ([1, "a"], None)):
        rows = [(1, content)] if is_structured else [content, None]
        array = np.array(rows, dtype=[("a", "i4"), ("b", "O")] if is_structured else object)
        path = tmp_path / ("a.npz" if save else "a.npy")
        save(path, array=array, w=np.ones(3)) if save else np.save(path, array, allow_pickle=True)
        if save or level:
            levels = {found.level for found in lw.check(path).of("LW70") if found.code in ("LW701", "LW703")}
            assert levels == ({level} if level else set())


def test_a_pickle_in_an_array_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", array=np.array([{1: 2}], dtype=object), w=np.ones(3))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data[:-3] if entry == "array.npy" else data)
    assert "cannot read to its end" in lw.check(tmp_path / "a.npz").of("LW701")[0].message


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_pickles_in_other_entries_of_a_zip_are_read(depth: int, tmp_path: Path) -> None:
    data, entry = b"\x80\x04" + call(name("posix", "getpid")) + b".", "extra/x.bin"
    for number in range(depth):
        (tmp_path / "inner.zip").unlink(missing_ok=True)
        with zipfile.ZipFile(
            tmp_path / "inner.zip", "w", (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[number]
        ) as archive:
            archive.writestr(entry, data)
        data, entry = (tmp_path / "inner.zip").read_bytes(), "inner.zip"
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt", "a") as archive:
        archive.writestr(f"a/{entry}", data)
    assert "posix.getpid" in lw.check(tmp_path / "a.pt").of("LW701")[0].message


class SavesItself(nn.Module):
    """Writes a file when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    @torch.jit.export
    def __getstate__(self):  # type: ignore[no-untyped-def]
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):  # type: ignore[no-untyped-def]
        self.weight, self.training = state[0], state[1]
        torch.save(state[0], "file.pt")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.mark.filterwarnings("ignore")
def test_code_of_torchscript_that_writes_files_is_an_error(tmp_path: Path) -> None:
    torch.jit.script(SavesItself()).save(str(tmp_path / "a.pt"))
    assert "torch.save" in lw.check(tmp_path / "a.pt").of("LW701")[0].message
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "b.pt"))
    assert not lw.check(tmp_path / "b.pt").of("LW7")


def test_every_pickle_of_the_older_format_is_checked(tmp_path: Path) -> None:
    evil = b"\x80\x02cposix\nsystem\n(X\x04\x00\x00\x00truetR0"
    good = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {}, [])]
    for number in range(1, 5):
        parts = [*good[:number], evil + good[number][2:], *good[number + 1 :]]
        (tmp_path / "model.pt").write_bytes(b"".join(parts))
        assert lw.check(tmp_path / "model.pt").of("LW701"), number


def test_objects_of_a_distributed_checkpoint_are_checked(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": torch.ones(4), "extra": Call(os.system, "true")}, checkpoint_id=tmp_path / "bad", no_dist=True)
        dcp.save({"w": torch.ones(4), "step": 3}, checkpoint_id=tmp_path / "good", no_dist=True)
    assert lw.check(tmp_path / "bad").of("LW701")
    assert not lw.check(tmp_path / "good").of("LW7")


def test_pickles_in_an_exported_program_are_checked(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "good.pt2")
    assert not lw.check(tmp_path / "good.pt2").of("LW701")
    torch.save(Call(os.system, "true"), tmp_path / "evil.pt")
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        for name in good.namelist():
            evil = name.endswith("sample_inputs/model.pt")
            bad.writestr(name, (tmp_path / "evil.pt").read_bytes() if evil else good.read(name))
    assert lw.check(tmp_path / "bad.pt2").of("LW701")


def test_entries_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x04}.")
        archive.writestr("a/DATA.PKL", b"\x80\x04}.")
    with pytest.raises(lw.FileError, match="only in upper and lower case"):
        lw.check(tmp_path / "model.pt")


def test_a_pickle_of_protocol_0_is_not_taken_for_text(tmp_path: Path) -> None:
    for data in (b"(S'true'\nios\nsystem\n.", b"cos\nsystem\n(S'true'\ntR."):
        (tmp_path / "model.pkl").write_bytes(data)
        assert lw.check(tmp_path / "model.pkl").of("LW701")


def test_what_modules_of_layers_import_is_no_layer() -> None:
    """`Enum`, for example, makes classes: only what these modules define is harmless."""
    for package in (torch.nn.modules, torch.nn.utils, torch.optim):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, value in vars(importlib.import_module(info.name)).items():
                kinds = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
                is_layer = isinstance(value, type) and issubclass(value, kinds)
                is_imported = getattr(value, "__module__", "").partition(".")[0] != "torch"
                if callable(value) and is_imported and not is_layer and pickle_calls.danger(info.name, name):
                    is_known = value is collections.OrderedDict
                    assert is_known or pickle_calls.danger(info.name, name) != "harmless", f"{info.name}.{name}"
