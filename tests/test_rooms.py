"""The rooms of the house: who may import whom, what is public, and what importing costs."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import leafwise

SOURCE = Path(leafwise.__file__).parent

# Room → the rooms it may import.
ALLOWED = {
    "printable": set(),
    "errors": {"printable"},
    "core": {"printable", "errors"},
    "kernels": {"core", "errors"},
    "homes": {"kernels", "core", "errors"},
    "files": {"kernels", "core", "errors"},
    "share": {"core", "errors"},
    "checkpoint": {"share", "files", "core", "errors"},
    "iterate": {"share", "core", "errors"},
    "inspect": {"iterate", "share", "kernels", "core", "errors"},
    "render": {"checkpoint", "inspect", "iterate", "share", "core", "errors"},
    "cli": {"render", "checkpoint", "inspect", "iterate", "share", "core", "files", "errors", "version"},
    "gluon": {"homes", "core", "errors"},
}

PUBLIC = {
    "Average", "ChecksumError", "Error", "FileError", "Leaf", "LoadError", "Name", "Node", "NonFiniteError", "Path",
    "PathError", "Query", "QueryError", "Rule", "RuleError", "Tie", "TieError", "TieWarning", "Tree", "Unsupported",
    "Use", "WalkError", "WriteError", "add_roles", "check", "clip", "diff", "flat", "freeze", "groups", "image",
    "initialize", "keep_ties", "layer_decay", "load", "no_decay", "open", "plan", "save", "stats", "thaw", "tie",
    "ties", "tree", "untie", "uses", "verify", "where",
}  # fmt: skip


# Outside of homes, files and kernels, what computes with NumPy, loaded when it is needed.
_WITH_NUMPY = {
    "read.py", "distributions.py", "leaf_filler.py", "grids.py", "bins.py", "pixels.py", "characters.py", "scale.py",
    "lines.py", "spectrum.py",
}  # fmt: skip


def modules() -> list[str]:
    found = pkgutil.walk_packages([str(SOURCE)], "leafwise.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "version"


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_imports_point_down() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        for name in imports_of(path):
            if name.split(".")[0] == "leafwise":
                target = room_of(name)
                if target.startswith("__"):
                    target = "version"
                if target != room and target not in ALLOWED[room]:
                    wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert wrong == []


@pytest.mark.parametrize(
    "room", ["core", "errors.py", "render", "cli", "files", "share", "checkpoint", "inspect", "iterate"]
)
def test_only_homes_name_a_framework(room: str) -> None:
    paths = [SOURCE / room] if room.endswith(".py") else list((SOURCE / room).rglob("*.py"))
    for path in paths:
        outside = {name.split(".")[0] for name in imports_of(path)} - {"leafwise"}
        foreign = outside - sys.stdlib_module_names
        allowed = (
            {"numpy", "ml_dtypes", "gguf", "fsspec", "xxhash"}
            if room == "files"
            else {"numpy"}
            if path.name in _WITH_NUMPY
            else set()
        )
        assert foreign <= ({"torch"} if path.name == "tour.py" else allowed), path


def test_the_public_names_are_these() -> None:
    assert set(leafwise.__all__) == PUBLIC == set(leafwise._MODULE_OF)
    assert set(dir(leafwise)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(leafwise, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        leafwise.nonsense  # noqa: B018


def test_no_submodule_hides_a_public_name() -> None:
    before = {name: getattr(leafwise, name) for name in PUBLIC}
    for module in modules():
        importlib.import_module(module)
    assert {name: getattr(leafwise, name) for name in PUBLIC} == before


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(sys.modules))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True).stdout
    return set(output.splitlines()[-1].split())


def test_importing_leafwise_loads_no_framework_and_hardly_anything() -> None:
    extra = loaded_by("import leafwise") - loaded_by("pass")
    assert extra == {"leafwise"}


def test_core_and_render_load_no_framework() -> None:
    loaded = loaded_by("import leafwise.core.tree, leafwise.render, leafwise.files, leafwise.cli")
    assert loaded.isdisjoint({"torch", "numpy", "jax", "safetensors"})


def test_walking_plain_containers_imports_no_framework() -> None:
    loaded = loaded_by("import leafwise as lw; str(lw.tree({'a': [1, {'b': 2}]}))")
    assert loaded.isdisjoint({"torch", "numpy", "jax"})
