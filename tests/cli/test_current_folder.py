"""No code in the current folder is run unless a target names it, because the folder may contain downloads."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import leafwise
from leafwise.cli import VERBS, main
from leafwise.cli.target import resolve

SOURCES = str(Path(leafwise.__file__).parent.parent)
OTHERS = ["aiohttp", "botocore", "flax", "fsspec", "gguf", "jax", "ml_dtypes", "mxnet", "numpy", "orjson", "pandas"]
OTHERS += ["requests", "s3fs", "safetensors", "torch", "torchvision", "transformers", "triton", "xxhash", "yaml"]


def python(*arguments: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    environ |= {"PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"} | environment
    return subprocess.run([sys.executable, *arguments], capture_output=True, encoding="utf-8", cwd=cwd, env=environ)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hostile module for every name of the standard library that can be shadowed, and many more."""
    folder = tmp_path_factory.mktemp("downloads")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "nothing.py").write_text("import sys; print(*sys.modules)")
    # Modules that `python -m` imports before it runs the module cannot be protected.
    loaded = python("-m", "nothing", cwd=elsewhere).stdout.split()
    names = {name for name in sys.stdlib_module_names if name not in loaded and name != "__main__"}
    for name in [*names, *OTHERS]:
        (folder / f"{name}.py").write_text(f"open('ran', 'a').write({name + ' '!r})\nraise SystemExit({name!r})\n")
    save_file({"a.weight": torch.ones(4, 3), "a.bias": torch.zeros(4)}, folder / "a.safetensors")
    torch.save({"a.weight": torch.ones(4, 3), "a.bias": torch.zeros(4), "step": 3}, folder / "b.pt")
    np.savez(folder / "c.npz", **{"a.weight": np.ones((4, 3)), "a.bias": np.zeros(4)})
    return folder


def names_in(folder: Path) -> list[str]:
    return [path.stem for path in folder.glob("*.py")]


COMMANDS = {
    "show": [["a.safetensors"], ["b.pt"], ["c.npz"]],
    "read": [["b.pt", "a.weight[0]", "--json"]],
    "stats": [["b.pt"], ["a.safetensors", "--json"]],
    "check": [["b.pt"]],
    "diff": [["a.safetensors", "b.pt"]],
    "image": [["c.npz", "a.weight", "-o", "picture.png"]],
    "view": [["b.pt", "--export", "report.html"]],
    "ties": [["b.pt"]],
    "groups": [["a.safetensors"]],
    "plan": [["a.safetensors", "b.pt"]],
    "verify": [["a.safetensors"]],
    "edit": [["b.pt", "-o", "e.safetensors", "--drop", "a.bias"]],
    "convert": [["b.pt", "d.safetensors"], ["a.safetensors", "d.npz"]],
    "tour": [["--help"]],
    "completion": [["bash"]],
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_imports_from_the_current_folder(verb: str, folder: Path) -> None:
    for arguments in COMMANDS[verb]:
        done = python("-m", "leafwise", verb, *arguments, cwd=folder)
        assert not (folder / "ran").exists(), (arguments, (folder / "ran").read_text())
        assert done.returncode in (0, 1), (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stdout or done.stderr


def test_python_itself_would_run_the_hostile_modules(folder: Path) -> None:
    """Otherwise, the test above would prove nothing."""
    done = python("-c", "import json", cwd=folder)
    assert (folder / "ran").read_text() == "json "
    assert done.returncode == 1
    (folder / "ran").unlink()


@pytest.mark.slow
def test_a_model_of_the_current_folder_is_built_with_its_neighbors_and_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folder, tmp_path / "copy"))
    absent = [name for name in names_in(folder) if importlib.util.find_spec(name) is None]
    for name in absent:  # a name that is not installed is an ordinary module of the folder
        (folder / f"{name}.py").unlink()
    (folder / "mymodel.py").write_text(
        "import json, torch, myhelper\n"
        "def build():\n"
        "    import mylater\n"
        "    return torch.nn.Linear(myhelper.size, mylater.size)\n"
    )
    (folder / "myhelper.py").write_text("size = 3\n")
    (folder / "mylater.py").write_text("size = 4\n")
    done = python("-m", "leafwise", "stats", "mymodel:build", "--json", cwd=folder)
    assert not (folder / "ran").exists(), (folder / "ran").read_text()
    assert done.returncode == 0, done.stderr
    assert [leaf["path"] for leaf in json.loads(done.stdout)["leaves"]] == ["weight", "bias"]


@pytest.mark.slow
def test_an_installed_model_runs_nothing_in_the_current_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "installed.py").write_text("import torch\ndef build(): return torch.nn.Linear(3, 4)\n")
    path = os.pathsep.join([SOURCES, str(tmp_path)])
    done = python("-m", "leafwise", "plan", "a.safetensors", "installed:build", cwd=folder, PYTHONPATH=path)
    assert not (folder / "ran").exists()
    assert "a.weight" in done.stdout, done.stderr


def test_a_module_in_the_current_folder_that_is_also_installed_is_an_error(folder: Path) -> None:
    for name in ("torch", "json"):
        done = python("-m", "leafwise", "show", f"{name}:build", cwd=folder)
        assert not (folder / "ran").exists()
        assert done.returncode == 1
        assert f"cannot import {name}: it is in the current folder and elsewhere" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    # With PYTHONPATH=., the current folder comes first.
    (folder / "mine").mkdir()
    (folder / "mine" / "colorsys.py").write_text("def build(): return {'w': __import__('numpy').ones(3)}\n")
    own = os.pathsep.join([".", SOURCES])
    assert (
        "3 parameters" in python("-m", "leafwise", "show", "colorsys:build", cwd=folder / "mine", PYTHONPATH=own).stdout
    )


def test_a_safe_path_keeps_its_first_entry(tmp_path: Path) -> None:
    """With `-P`, Python does not put the current folder first, so nothing must be removed."""
    done = python("-P", "-m", "leafwise", "--version", cwd=tmp_path)
    assert done.stdout.startswith("leafwise "), done.stderr


@pytest.mark.parametrize("kind", ["dangling link", "link", "file", "folder"])
def test_a_file_that_a_glob_matches_is_never_imported(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef main(): return {}\n")
    beside = Path("evil:main")
    if kind.endswith("link"):
        beside.symlink_to("evil.py" if kind == "link" else "nowhere")
    else:
        beside.touch() if kind == "file" else beside.mkdir()
    other = tmp_path / "a.safetensors"
    save_file({"w": torch.ones(2)}, other)
    for command in (["show"], ["stats"], ["check"], ["ties"], ["groups"], ["diff", str(other)], ["plan", str(other)]):
        assert main([*command, "evil:main"]) in (1, 2)
    for command in (["read", "evil:main", "w"], ["image", "evil:main"], ["verify", "evil:main"]):
        assert main(command) in (1, 2)
    assert not Path("ran").exists()
    assert "evil" not in sys.modules
    assert "evil:main" in capsys.readouterr().err


def test_a_file_that_exists_is_not_taken_for_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`leafwise show *//*` must not contact a server because a folder is called `http:`."""
    monkeypatch.chdir(tmp_path)
    Path("http:").mkdir()
    save_file({"w": torch.ones(2)}, Path("http:/127.0.0.1:9"))
    assert main(["show", "http://127.0.0.1:9"]) == 0
    assert main(["verify", "http://127.0.0.1:9"]) == 1  # it has no checksums
    assert main(["convert", "http://127.0.0.1:9", "b.safetensors"]) == 0
    assert main(["plan", "http://127.0.0.1:9", "b.safetensors"]) == 0


def test_help_says_that_import_targets_run_code(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("show", "read", "stats", "check", "diff", "image", "ties", "groups", "plan"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert "which is imported and run" in " ".join(capsys.readouterr().out.split())


def test_an_import_leaves_the_path_of_other_modules_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "found_here_only.py").write_text("value = {}\n")
    before = list(sys.path)
    assert resolve("collections:OrderedDict") == {}
    assert sys.path == before
    assert resolve("found_here_only:value") == {}
    assert sys.path == [*before, str(tmp_path)]
    resolve("found_here_only:value")
    assert sys.path == [*before, str(tmp_path)]
