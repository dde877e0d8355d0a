"""The rooms of the house: who may import whom, what is public, and what importing costs."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.syntax import SOURCE, nodes_of_sources

import leafwise
from leafwise.core.capabilities import Capability
from leafwise.core.home import Home

# Room → the rooms it may import.
ALLOWED = {
    "printable": set(),
    "errors": {"printable"},
    "core": {"printable", "errors", "version"},
    "kernels": {"core", "errors"},
    "homes": {"kernels", "core", "errors"},
    "files": {"kernels", "core", "errors"},
    "share": {"kernels", "core", "errors"},
    "checkpoint": {"share", "files", "core", "errors"},
    "iterate": {"share", "core", "errors"},
    "inspect": {"iterate", "share", "kernels", "core", "errors"},
    "render": {"checkpoint", "inspect", "iterate", "share", "core", "errors"},
    "cli": {"web", "render", "checkpoint", "inspect", "iterate", "share", "core", "files", "errors", "version"},
    "web": {"render", "checkpoint", "inspect", "share", "core", "errors", "version"},
    "testing": {"files", "core", "errors", "version"},
}

# Tested where JAX is installed, in tests/jax.
NEEDS_JAX = ("leafwise.homes.jax.", "leafwise.kernels.xla.")

PUBLIC = {
    "ArgumentError", "Average", "ChecksumError", "EditError", "Error", "FileError", "Leaf", "LoadError", "Name", "Node",
    "NonFiniteError", "Path", "PathError", "Query", "QueryError", "RankError", "Rule", "RuleError", "Tie", "TieError",
    "TieWarning", "Tree", "Unsupported", "Use", "WalkError", "WorkerError", "WriteError", "add_roles", "check", "clip",
    "diff", "edit", "flat", "freeze", "groups", "image", "initialize", "keep_ties", "layer_decay", "load",
    "no_decay", "open", "plan", "register", "release_ties", "save", "shard_units", "stats", "thaw", "tie", "ties",
    "trainable", "tree", "untie", "uses", "verify", "view", "where",
}  # fmt: skip


# The modules outside homes, files and kernels that use NumPy; they are loaded when needed.
_WITH_NUMPY = {
    "read.py", "distributions.py", "leaf_filler.py", "grids.py", "bins.py", "pixels.py", "characters.py", "scale.py",
    "duplicate_rows.py", "zero_lines.py", "spectrum.py", "indices.py", "font.py", "frame.py", "check_ranks.py",
    "spread_arrays.py", "team_measuring.py", "leaf_page.py", "pictures.py",
}  # fmt: skip


def modules() -> list[str]:
    found = pkgutil.walk_packages([str(SOURCE)], "leafwise.")
    modules = [module.name for module in found if not module.name.endswith("__main__")]
    return modules if find_spec("jax") else [name for name in modules if not name.startswith(NEEDS_JAX)]


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "version"


Nodes = dict[str, list[ast.AST]]


@pytest.fixture(scope="module")
def nodes() -> Nodes:
    return nodes_of_sources()


def imports_of(file: str, nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def modules_in_strings(nodes: Iterable[ast.AST]) -> set[str]:
    """The modules named in strings, as in calls of `import_module` and in tables of late imports."""
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {text.partition(":")[0] for text in texts if re.fullmatch(r"leafwise(\.\w+)+(:\w+)?", text)}
    return {name for name in names if is_module(name)}


# Modules that may name a module of a higher room in a string: core finds homes, opens files and renders results.
LATE = {
    "core/registry.py": {"homes", "files"},
    "core/tree.py": {"files"},
    "core/work/executor_tasks.py": {"files"},
    "core/work/fleet.py": {"files"},
    "core/results/result.py": {"render"},
    "core/work/progress.py": {"render"},
    "inspect/image/picture.py": {"render"},
}


@pytest.mark.slow
def test_imports_point_down(nodes: Nodes) -> None:
    wrong = []
    for name, in_file in nodes.items():
        room = name.split("/")[0].removesuffix(".py")
        if room in ("__init__", "__main__", "results"):
            continue
        late = modules_in_strings(in_file)
        for module in imports_of(name, in_file) | late:
            if module.split(".")[0] == "leafwise":
                target = room_of(module)
                if target.startswith("__"):
                    target = "version"
                if target != room and target not in ALLOWED[room] | (
                    LATE.get(name, set()) if module in late else set()
                ):
                    wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_imports_by_string_are_detected() -> None:
    code = """
import_module("leafwise.render.progress")
TABLE = {Tying: "leafwise.homes.torch.ties.tying:TorchTying"}
other = ["leafwise.", "leafwise.nonsense", "leafwise.render is a room"]
"""
    assert modules_in_strings(ast.walk(ast.parse(code))) == {
        "leafwise.render.progress",
        "leafwise.homes.torch.ties.tying",
    }


def test_a_home_needs_at_most_twenty_methods() -> None:
    methods = [name for name, value in vars(Home).items() if callable(value) and not name.startswith("__")]
    assert len(methods) <= 20, methods


# The capabilities are one file each.
MANY_MODULES = {"core/capabilities"}


def test_a_folder_has_at_most_twenty_modules_and_says_what_is_in_it() -> None:
    modules = Counter(path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
    assert {folder for folder, count in modules.items() if count > 21} == MANY_MODULES  # and __init__
    undocumented = [
        folder
        for folder in modules
        if not ast.get_docstring(ast.parse((SOURCE / folder / "__init__.py").read_text("utf-8")))
    ]
    assert undocumented == []


# -- names -------------------------------------------------------------------------------------------------

# Attributes of PyTorch, which leafwise's own classes imitate.
FOREIGN = {
    "_apply", "_buffers", "_fields", "_load_from_state_dict", "_modules", "_parameters", "_repr_html_",
}  # fmt: skip
NAMED_TUPLES = {"_asdict", "_field_defaults", "_make", "_replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in FOREIGN | NAMED_TUPLES


def is_name(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def private_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The underscore names that a file defines: functions, classes, variables, attributes, slots."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_name(node.value, "self", "cls"):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Assign) and any(is_name(target, "__slots__") for target in node.targets):
            names |= {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
    return {name for name in names if is_private(name)}


def reached(nodes: Iterable[ast.AST]) -> set[str]:
    """The underscore names that a file reads, as attributes, by import, or by a string."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leafwise"):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and is_name(node.func, "getattr", "hasattr", "setattr", "attrgetter"):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return {name for name in names if is_private(name)}


def test_private_names_are_used_in_their_own_folder_only(nodes: Nodes) -> None:
    own: dict[str, set[str]] = {}
    for name, in_file in nodes.items():
        own.setdefault(name.rpartition("/")[0], set()).update(private_names(in_file))
    every = set().union(*own.values())  # other names are attributes of objects from other libraries
    reaches = {
        name: foreign
        for name, in_file in nodes.items()
        if (foreign := reached(in_file) & every - own[name.rpartition("/")[0]])
    }
    assert reaches == {}


def test_uses_of_private_names_are_detected() -> None:
    code = "class A:\n  __slots__ = ('_s',)\n  def _m(self): self._x = _y = 1"
    assert private_names(ast.walk(ast.parse(code))) == {"_s", "_m", "_x", "_y"}
    code = "from leafwise.core.tree import _FILES\nt._rows; getattr(t, '_node'); module._parameters; spec._replace()"
    assert reached(ast.walk(ast.parse(code))) == {"_FILES", "_rows", "_node"}


def test_no_two_classes_share_a_name(nodes: Nodes) -> None:
    places: dict[str, list[str]] = {}
    for name, in_file in nodes.items():
        for node in in_file:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def stem(name: str) -> str:
    """A file's name without what a reader may overlook: its ending, and the difference between s and z."""
    return re.sub(r"(ations?|ings?|ers?|ors?|ed|es|s|e)$", "", name.replace("z", "s"))


def test_no_two_files_of_a_room_are_easily_confused() -> None:
    assert stem("initializing") == stem("initializers")
    stems: dict[tuple[Path, str], list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        stems.setdefault((path.parent, stem(path.stem)), []).append(path.name)
    assert {f"{folder.name}/{name}": files for (folder, name), files in stems.items() if len(files) > 1} == {}


VAGUE = {"found", "its", "one", "said", "told"}


def test_variables_are_named_after_what_they_hold(nodes: Nodes) -> None:
    vague = []
    for name, in_file in nodes.items():
        for node in in_file:
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE
            if stored or (isinstance(node, ast.arg) and node.arg in VAGUE):
                vague.append(f"{name}:{node.lineno}")
    assert len(vague) <= 20, vague  # such names are a last resort


# -- docs/architecture.md ----------------------------------------------------------------------------------

PAGE = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text("utf-8")


def test_the_page_lists_the_rooms_and_what_they_import() -> None:
    rows = re.findall(r"^\| `([a-z]+)` \| .* \|([^|]*)\|$", PAGE, re.M)
    assert {room: set(re.findall(r"`(\w+)`", imports)) for room, imports in rows} == {
        room: imports - {"version"} for room, imports in ALLOWED.items()
    }


def test_the_files_and_names_on_the_page_exist() -> None:
    places = set(re.findall(r"`((?:\w+/)+[\w.]*)(?::(\w+))?`", PAGE))
    assert len(places) > 40
    for place, name in places:
        files = [base / place for base in (SOURCE, SOURCE.parent.parent) if (base / place).exists()]
        assert files, place
        assert not name or re.search(rf"\b{name}\b", files[0].read_text("utf-8")), (place, name)


def test_the_page_says_where_to_make_thirteen_changes() -> None:
    table = PAGE[PAGE.index("## Where do I change") :]
    assert len(re.findall(r"^\| \*\*.*\*\* \|.*\|.*\|$", table, re.M)) == 13


def test_every_capability_is_on_the_page() -> None:
    from leafwise.core import capabilities

    for module in pkgutil.iter_modules(capabilities.__path__, f"{capabilities.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Capability) and value is not Capability:
                assert f"`{name}`" in PAGE, name


# -- frameworks and public names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "room", ["core", "errors.py", "render", "cli", "files", "share", "checkpoint", "inspect", "iterate"]
)
def test_only_homes_name_a_framework(room: str, nodes: Nodes) -> None:
    paths = [Path(name) for name in nodes if name.split("/")[0] == room]
    assert paths
    for path in paths:
        imports = imports_of(str(path), nodes[path.as_posix()])
        outside = {name.split(".")[0] for name in imports} - {"leafwise"}
        foreign = outside - sys.stdlib_module_names
        allowed = (
            {"numpy", "ml_dtypes", "gguf", "fsspec", "aiohttp", "xxhash", "tensorstore"}
            if room == "files"
            else {"numpy"}
            if path.name in _WITH_NUMPY
            else set()
        )
        assert foreign <= ({"torch"} if path.name == "tour.py" else allowed), path


def test_the_public_names_are_these() -> None:
    assert set(leafwise.__all__) == PUBLIC == set(leafwise._MODULE_OF)
    assert "TYPE_CHECKING" not in vars(leafwise)
    for name in PUBLIC:
        assert getattr(leafwise, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        leafwise.nonsense  # noqa: B018


def test_completion_offers_the_functions_and_the_types_that_people_make() -> None:
    shown = {name for name in dir(leafwise) if not name.startswith("__")}
    functions = {name for name in PUBLIC if callable(getattr(leafwise, name)) and name[0].islower()}
    assert shown == functions | {"Average", "Error", "Path", "Rule"}
    in_reference = {
        "by", "close", "counts", "find", "is_file", "items", "json", "nodes", "opaque", "pandas", "path", "scalars",
        "select", "shared_memory", "text", "ties", "top", "undone",
    }  # fmt: skip
    assert {name for name in dir(leafwise.tree({"a": []})) if not name.startswith("_")} == in_reference
    assert all(getattr(leafwise.Tree, name).__doc__ for name in in_reference)


def test_no_submodule_hides_a_public_name() -> None:
    before = {name: getattr(leafwise, name) for name in PUBLIC}
    for module in modules():
        importlib.import_module(module)
    assert {name: getattr(leafwise, name) for name in PUBLIC} == before


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(sys.modules))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True).stdout
    return set(output.splitlines()[-1].split())


def test_importing_leafwise_loads_no_other_module() -> None:
    extra = loaded_by("import leafwise") - loaded_by("pass")
    assert extra == {"leafwise"}


def test_core_and_render_load_no_framework() -> None:
    loaded = loaded_by("import leafwise.core.tree, leafwise.render, leafwise.files, leafwise.cli")
    assert loaded.isdisjoint({"torch", "numpy", "jax", "safetensors"})


def test_walking_plain_containers_imports_no_framework() -> None:
    loaded = loaded_by("import leafwise as lw; str(lw.tree({'a': [1, {'b': 2}]}))")
    assert loaded.isdisjoint({"torch", "numpy", "jax"})


@pytest.mark.slow
def test_capabilities_are_imported_when_they_are_first_asked_for() -> None:
    loaded = loaded_by("import torch, leafwise as lw; t = lw.tree(torch.nn.Linear(2, 2)); str(t); t.counts")
    assert "leafwise.homes.torch.home" in loaded
    late = (
        "training.averaging", "training.clipping", "training.grouping", "training.packing", "training.uses",
        "values.filling", "values.measuring", "checkpoints.recompute", "checkpoints.saving",
    )  # fmt: skip
    assert loaded.isdisjoint(f"leafwise.homes.torch.{name}" for name in late)
