"""Names and values that move the cursor, hide or reverse text, or forge a line are harmless when they are shown."""

import json
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.files.writers import WRITERS
from tests.hostile import files
from tests.hostile.test_files import try_to_open

import leafwise as lw
from leafwise.cli import VERBS, main

FORGED = "FORGED"
# Escape, the one-character CSI, bidi override and isolate, line ends of several kinds, bell, backspace, delete,
# zero width, byte order mark, a soft hyphen, a tag character.
CHARS = "\x1b[31m\x9b2J\u202e\u2066\r\x85\u2028\u2029\x07\x08\x7f\u200b\ufeff\xad\U000e0041"
EVIL = f"evil{CHARS}\n{FORGED}<b>"
# A possible file name: no slash and no null, but a byte that is not UTF-8.
FILE = f"{EVIL}\udcff"


def harmless(*texts: str) -> None:
    for text in texts:
        raw = {char for char in text if not char.isprintable() and char != "\n"}
        assert not raw, (sorted(map(ascii, raw)), ascii(text))
        assert f"\n{FORGED}" not in text, text


def shown_by(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The text of a call's result or error. Checks that every way of showing the result or the error is harmless."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = call(*args, **options)
        except lw.Error as error:
            harmless(str(error), repr(error), *map(str, getattr(error, "__notes__", ())))
            return str(error)
    harmless(*(str(one.message) for one in caught))
    if not type(found).__module__.startswith("leafwise"):
        return ""  # the model, or an array, which other libraries print
    harmless(repr(found), str(found), f"{found}")
    if hasattr(found, "text"):
        html = found._repr_html_()
        harmless(found.text(), html, json.dumps(found.json()), getattr(found, "caption", ""))
        assert "<b>" not in html
    if isinstance(found, lw.Tree):
        harmless(found.text(full=True), *map(repr, found), *map(repr, found.nodes), *map(repr, found.ties))
        harmless(*map(repr, found.scalars), *map(str, found.scalars))
    elif isinstance(found, Mapping):
        harmless(*map(repr, found.values()), *map(repr, found))
    elif isinstance(found, Iterable):
        harmless(*map(repr, found), *map(str, found))
    return str(found)


def state() -> dict[str, torch.Tensor]:
    return {
        f"{EVIL}.weight": torch.ones(4, 3),
        f"{EVIL}.bias": torch.full((4,), torch.nan),
        f"same{EVIL}": torch.zeros(3, 3),
        "last": torch.zeros(3),
    }


class Model(torch.nn.Module):
    """A model with hostile names, whose class has a hostile name, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_module(EVIL.replace(".", ""), torch.nn.Linear(3, 4))
        self.register_parameter(f"own{EVIL}".replace(".", ""), torch.nn.Parameter(torch.ones(2)))


Model.__name__ = Model.__qualname__ = EVIL


def lw_saved(path: Path, arrays: dict[str, torch.Tensor]) -> None:
    content = {"model": dict(arrays), "note": EVIL, f"key{EVIL}": [EVIL, 3], "deep": {EVIL: {EVIL: EVIL}}}
    lw.save(content, path.with_suffix(".safetensors"))
    path.with_suffix(".safetensors").rename(path)


def lw_sharded(path: Path, arrays: dict[str, torch.Tensor]) -> None:
    path.mkdir()
    lw.save(dict(arrays), path / "model.safetensors", shard_size=40)


def torch_nested(path: Path, arrays: dict[str, torch.Tensor]) -> None:
    torch.save({"model": arrays, EVIL: EVIL, "list": [EVIL, {EVIL: 1}], "complex": 1j, "bytes": b"\x1b[31m"}, path)


def with_metadata(path: Path, arrays: dict[str, torch.Tensor]) -> None:
    """safetensors with metadata, and with lone surrogates, which are possible in JSON but not in UTF-8."""
    header: dict[str, Any] = {"__metadata__": {EVIL: EVIL, "format": EVIL}}
    header |= {f"{EVIL}\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))


def wrong_dtype(path: Path, arrays: dict[str, torch.Tensor]) -> None:
    text = json.dumps({EVIL: {"dtype": EVIL, "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))


def structured(path: Path, arrays: dict[str, torch.Tensor]) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(2, [(EVIL, "f4")]))


def foreign_class(path: Path, arrays: dict[str, torch.Tensor]) -> None:
    name = "evil\x1b[31m\u202e".encode()
    path.write_bytes(files.in_zip(b"\x80\x02c" + name + b"\n" + name + b"\n)\x81."))


def index_of_evil_shards(path: Path, arrays: dict[str, torch.Tensor]) -> None:
    path.mkdir()
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EVIL: f"{EVIL}.safetensors"}}))


CHECKPOINTS = {name: write for name, write in WRITERS.items() if name not in ("npz compressed",)} | {
    "lw.save": lw_saved,
    "lw.save sharded": lw_sharded,
    "torch nested": torch_nested,
    "metadata": with_metadata,
    "wrong dtype": wrong_dtype,
    "structured": structured,
    "foreign class": foreign_class,
    "evil shards": index_of_evil_shards,
}


@pytest.fixture(params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / FILE
    folder.mkdir()
    short = tmp_path / "short"  # not all writers support names that are not UTF-8
    CHECKPOINTS[request.param](short, state())
    path = folder / FILE
    short.rename(path)
    return path


def variants(path: Path) -> Iterator[Path]:
    """The file itself; a truncated one; one with a flipped bit; one that does not exist."""
    yield path
    if path.is_file():
        data = path.read_bytes()
        for number, changed in enumerate([data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1])]):
            other = path.with_name(f"{number}{FILE}")
            other.write_bytes(changed)
            yield other
    yield path.with_name(f"gone{FILE}")


@pytest.mark.slow
def test_names_in_a_checkpoint_are_shown_harmlessly(checkpoint: Path, tmp_path: Path) -> None:
    model, other = Model(), {"other": torch.ones(1)}
    for path in map(str, variants(checkpoint)):
        said = shown_by(lw.open, path)
        for verb in (lw.stats, lw.check, lw.ties, lw.groups, lw.image, lw.verify):
            said += shown_by(verb, path)
        said += shown_by(lw.diff, path, state()) + shown_by(lw.diff, path, model)
        said += shown_by(lw.diff, path, other) + shown_by(lw.diff, path, other, rename="auto")  # no leaf in common
        said += shown_by(lw.plan, model, path) + shown_by(lw.plan, model, path, rename="auto", allow=["missing"])
        said += shown_by(lw.load, model, path)
        said += shown_by(lw.load, {"model": model, "step": 0}, path, allow=["missing", "shape", "unexpected"])
        try:
            tree = lw.open(path)
        except lw.FileError:
            assert "evil" in said
            continue
        with tree:
            said += shown_by(tree.__getitem__, f"nothing{EVIL}") + shown_by(tree.select, f"*{CHARS}*")
            said += shown_by(lw.save, tree, tmp_path / f"saved{EVIL}.safetensors")
            said += shown_by(lw.save, tree, tmp_path / EVIL / EVIL)
            for leaf in tree:
                shown_by(lw.image, leaf)
                shown_by(leaf.numpy, (9, 9, 9, 9))
                shown_by(leaf.write, np.zeros(17))
        assert "evil" in said


@pytest.mark.slow
def test_every_command_prints_names_harmlessly(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "hostile_names.py").write_text(
        f"import torch\ndef build(): return {{{f'x{EVIL}'!r}: torch.ones(2)}}\n"
        f"def fails(): raise ValueError({EVIL!r})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written = str(tmp_path / f"out{FILE}")
    seen = ""
    for path in map(str, variants(checkpoint)):
        leaf = "last"
        if os.path.exists(path):
            try:
                with lw.open(path) as tree:
                    leaf = next((str(one.path) for one in tree), leaf)
            except lw.FileError:
                pass
        commands = {
            "show": [
                [path],
                [path, EVIL],
                [path, "--top", "9"],
                [path, "--by", "module", "--depth", "9"],
                [path, "--full"],
                [path, "--json"],
                [path, "--where", EVIL],
                ["hostile_names:fails"],
            ],
            "read": [[path, leaf], [path, leaf, "--json"], [path, "note"], [path, EVIL], [path, f"{leaf}[{EVIL}]"]],
            "stats": [[path], [path, "--json"]],
            "check": [[path], [path, "--against", path], [path, "--select", EVIL]],
            "diff": [[path, path, "--full"], [path, "hostile_names:build"], [path, path, "--rename", f"({EVIL}=x"]],
            "image": [[path, leaf], [path, leaf, "-o", f"{written}.png"], [path, leaf, "--style", EVIL]],
            "view": [[path, "--export", f"{written}.html"], [path, "--export", written]],
            "ties": [[path], [path, "--equal-untied"]],
            "groups": [[path]],
            "plan": [[path, "hostile_names:build"], [path, path]],
            "verify": [[path], [path, "--json"]],
            "edit": [[path, "-o", f"{written}.edited.safetensors"], [path, "-o", written, "--drop", EVIL]],
            "convert": [[path, f"{written}.safetensors"], [path, f"{written}.npz"], [path, written]],
            "tour": [],
            "completion": [["zsh"]],
        }
        assert list(commands) == VERBS
        for verb, given in commands.items():
            for arguments in given:
                with warnings.catch_warnings():
                    warnings.simplefilter("always")
                    status = main([verb, *arguments])
                output = capsys.readouterr()
                harmless(output.out, output.err)
                assert "Traceback" not in output.err
                assert status in (0, 1, 2)
                seen += output.out + output.err
    assert "evil" in seen


def test_arguments_that_are_not_understood_are_printed_harmlessly(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [EVIL],
        ["verify", "x", EVIL],
        ["show", "x", f"--{EVIL}"],
        ["check", "x", "--fail-on", EVIL],
        ["view", "x", "--port", EVIL],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        harmless(*capsys.readouterr())
    assert main(["show", "x", EVIL]) == 1  # a word that finds leaves
    harmless(*capsys.readouterr())


def test_a_live_model_is_shown_harmlessly() -> None:
    model = Model()
    for verb in (lw.tree, lw.stats, lw.check, lw.ties, lw.groups, lw.keep_ties, lw.uses):
        shown_by(verb, model)
    shown_by(lw.groups, model, [lw.Rule(EVIL, lr=1)])
    shown_by(lw.freeze, model, f"no{EVIL}")
    shown_by(lw.freeze, model, EVIL)  # the path of a module
    lw.thaw(model, "**")
    shown_by(lw.tie, model, EVIL, to=f"own{EVIL}")
    shown_by(lw.initialize, model, [lw.Rule("**", init=EVIL)])
    shown_by(lw.clip, model, EVIL)
    shown_by(lw.tree(model).__getitem__, EVIL)
    shown_by(lw.Path.parse, f'"{EVIL}')
    first, *_, last = lw.tree(model)
    shown_by(lw.tie, model, first.path, to=last.path)
    with lw.uses(model) as uses:
        next(model.children())(torch.ones(1, 3)).sum().backward()
    for gradients in uses.values():
        harmless(repr(gradients))
    shown_by(lw.clip, model, 1.0)


def every_error(of: type = lw.Error) -> Iterator[type[lw.Error]]:
    yield of
    for kind in of.__subclasses__():
        yield from every_error(kind)


@pytest.mark.parametrize("kind", list(every_error()))
def test_every_error_is_one_line_of_plain_text(kind: Any) -> None:
    everything = "".join(map(chr, range(0x3000))) + "\ud800\U000e0041"
    error = kind(everything, "write") if kind is lw.Unsupported else kind(everything)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one).isprintable()
    given = ["see https://me:secret@host/a?token=secret#secret"] * (2 if kind is lw.Unsupported else 1)
    assert "secret" not in str(kind(*given))


def test_a_name_adds_no_line_to_an_error() -> None:
    assert str(lw.LoadError(["one\ntwo", "three"])) == "one\\ntwo\nthree"


def test_escapes_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"text": "a\x1b[31mred"}, tmp_path / "a.pt")
    assert main(["read", str(tmp_path / "a.pt"), "text"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    for descr in ("<\x1b1", "|\x9b1"):
        header = (
            repr({"descr": descr, "fortran_order": False, "shape": (1,)}).encode("latin-1").replace(b"\\x1b", b"\x1b")
        )
        (tmp_path / "a.npy").write_bytes(files._npy(header.replace(b"\\x9b", b"\x9b")))
        said = try_to_open(tmp_path / "a.npy")
        shown = lw.open(tmp_path / "a.npy").text() if said == "opened" else said
        assert not set(shown) & {"\x1b", "\x9b"}
