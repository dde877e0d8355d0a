"""Packages that extend leafwise and are broken, careless or greedy: others, and leafwise's own formats, still work."""

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import leafwise as lw
from leafwise.cli import main
from leafwise.core import registry

Install = Callable[..., None]

FORMAT = """
import numpy
from leafwise.files.arrays.stored import InMemory, spec_of
from leafwise.files.formats.format import Format
from leafwise.files.stored_file import StoredFile

def made():
    raise ValueError("the checksum is wrong")

def read(source):
    arrays = {"a": InMemory(spec_of((2,), "float32"), lambda: numpy.ones(2, "float32"))}
    arrays["b"] = InMemory(spec_of((2,), "float32"), ARRAY)
    return StoredFile(source, "mine", arrays)

FORMAT = Format("mine", "mine", read, RECOGNIZES, suffixes=(".mine",), write=lambda *what: None, dtypes=("float32",))
"""
MINE = FORMAT.replace("RECOGNIZES", 'lambda start, size: start[:4] == b"MINE"').replace("ARRAY", "made")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with one module and one entry point on the path."""

    def installed(module: str, code: str, group: str = "leafwise.formats", name: str = "", value: str = "") -> None:
        folder = tmp_path / "packages"
        info = folder / f"{module}-1.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(code, "utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n", "utf-8")
        (info / "entry_points.txt").write_text(
            f"[{group}]\n{name or module} = {value or f'{module}:FORMAT'}\n", "utf-8"
        )
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)
        registry.forget_packages()

    yield installed
    registry.forget_packages()


@pytest.mark.parametrize("how", ["recognizes", "in_zip", "in_folder"])
def test_a_format_that_fails_to_recognize_is_left_out_with_a_warning(
    how: str, install: Install, tmp_path: Path
) -> None:
    install("broken_package", FORMAT.replace("ARRAY", "made").replace("RECOGNIZES", f"{how}=lambda *what: 1 / 0"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("text", "utf-8")
    with zipfile.ZipFile(tmp_path / "b.odd", "w") as file:
        file.writestr("a.txt", "text")
    (tmp_path / "c.odd").write_bytes(b"\x07" * 99)
    path = {"recognizes": "c.odd", "in_zip": "b.odd", "in_folder": "folder"}[how]
    with pytest.warns(UserWarning, match=f"{how} of the format mine raised ZeroDivisionError"), pytest.raises(lw.Error):
        lw.open(tmp_path / path)


@pytest.mark.parametrize(
    ("code", "value", "reason"),
    [
        ("raise RuntimeError('no')", "", "RuntimeError: no"),
        ("raise SystemExit(3)", "", "SystemExit: 3"),
        ("FORMAT = 3", "", "it is 3, not an object of the class Format"),
        ("", "broken_package:gone", "AttributeError"),
    ],
)
def test_a_broken_package_is_left_out_with_a_warning(
    code: str, value: str, reason: str, install: Install, tmp_path: Path
) -> None:
    install("broken_package", code, value=value)
    install("other_package", MINE)
    (tmp_path / "m.mine").write_bytes(b"MINE")
    with pytest.warns(UserWarning, match=f"of the package broken_package, which extends leafwise: {reason}"):
        t = lw.open(tmp_path / "m.mine")
    assert t["a"].numpy().tolist() == [1, 1]


def test_a_broken_home_does_not_disable_live_models(install: Install) -> None:
    install("broken_home", "raise RuntimeError('no')", "leafwise.homes", "numpy", "broken_home:HOME")
    with pytest.warns(UserWarning, match="broken_home"):
        assert len(lw.tree({"a": np.ones(2)})) == 1


def test_files_with_a_suffix_of_leafwise_are_never_those_of_a_package(install: Install, tmp_path: Path) -> None:
    install("greedy_package", FORMAT.replace("RECOGNIZES", "lambda start, size: True").replace("ARRAY", "made"))
    whole = Path(lw.save({"w": np.ones(100)}, tmp_path / "m.safetensors"))
    (tmp_path / "cut").mkdir()
    for name in ("m.safetensors", "m.pt", "m.npz", "m.gguf", "cut/m.safetensors"):
        (tmp_path / name).write_bytes(whole.read_bytes()[:100])
        with pytest.raises(lw.FileError):
            lw.open(tmp_path / name)
    with pytest.raises(lw.FileError):
        lw.open(tmp_path / "cut")
    (tmp_path / "m.other").write_bytes(b"other")
    assert len(lw.open(tmp_path / "m.other")) == 2


def test_what_concerns_only_formats_of_leafwise_reads_no_entry_points(install: Install, tmp_path: Path) -> None:
    install("broken_package", "print('imported')\nraise RuntimeError('no')")
    file = lw.save({"w": np.ones(3)}, tmp_path / "m.safetensors")
    code = "import sys; from leafwise.cli import main; sys.exit(main(sys.argv[1:]))"
    for command in (["show", file], ["convert", file, str(tmp_path / "m.npz")]):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'packages')!r}); {code}", *command],
            capture_output=True, encoding="utf-8", check=False,
        )  # fmt: skip
        assert not done.returncode, done.stderr
        assert "imported" not in done.stdout + done.stderr


def test_a_format_that_writes_nothing_is_an_error(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("lazy_package", MINE)
    file = lw.save({"w": np.ones(3, np.float32)}, tmp_path / "m.safetensors")
    assert main(["convert", file, str(tmp_path / "m.mine")])
    assert "mine did not write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        ("made", "the checksum is wrong"),
        ("lambda: numpy.ones(3)", "float64 of shape (3,) was read for float32 of shape (2,)"),
    ],
)
def test_a_load_from_an_array_that_cannot_be_made_changes_nothing(
    array: str, reason: str, install: Install, tmp_path: Path
) -> None:
    install("odd_package", MINE.replace("ARRAY", array).replace('"float32"), made', f'"float32"), {array}'))
    (tmp_path / "m.mine").write_bytes(b"MINE")
    target = {name: np.zeros(2, np.float32) for name in "ab"}
    with pytest.raises(Exception) as raised:  # noqa: PT011
        lw.load(target, tmp_path / "m.mine")
    assert reason in str(raised.value)
    assert not any(values.any() for values in target.values())


def test_only_homes_are_registered() -> None:
    for wrong in (3, registry.Home):
        with pytest.raises(lw.ArgumentError, match="an object of a class that derives from Home"):
            lw.register(wrong)  # type: ignore[arg-type]
