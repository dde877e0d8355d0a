"""The package beside leafwise: what it uses of leafwise, and how leafwise finds its homes."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import leafwise
import leafwise_gluon

PACKAGE = Path(__file__).parents[1]
SOURCE = PACKAGE / "src" / "leafwise_gluon"

# What is not public in leafwise, and may change there together with this package.
USED = {
    "leafwise.checkpoint.saving.save": {"save"},
    "leafwise.core.capabilities": {"Capability"},
    "leafwise.core.capabilities.averaging": {"Averaging"},
    "leafwise.core.capabilities.clipping": {"Clipping"},
    "leafwise.core.capabilities.comparing": {"Comparing"},
    "leafwise.core.capabilities.filling": {"Filling"},
    "leafwise.core.capabilities.freezing": {"Freezing"},
    "leafwise.core.capabilities.loading": {"Loading"},
    "leafwise.core.capabilities.measuring": {"Measuring"},
    "leafwise.core.capabilities.naming": {"Naming"},
    "leafwise.core.capabilities.packing": {"Packing"},
    "leafwise.core.capabilities.rebuilding": {"Rebuilding"},
    "leafwise.core.capabilities.saving": {"Saving"},
    "leafwise.core.capabilities.sharding": {"Distributing"},
    "leafwise.core.capabilities.tying": {"DeclaredTie", "Keep", "Place", "TiedPlaces", "Tying"},
    "leafwise.core.capabilities.viewing": {"Viewing"},
    "leafwise.core.dtypes": {"DTYPES"},
    "leafwise.core.home": {"Capabilities", "Memory", "Spec", "Visit"},
    "leafwise.core.memory.ops": {"Op"},
    "leafwise.core.path": {"Entry"},
    "leafwise.core.roles.role_table": {"add_roles"},
    "leafwise.core.tree": {"Tree", "open"},
    "leafwise.core.work.progress": {"Count"},
    "leafwise.errors": {"Error", "FileError", "Unsupported"},
    "leafwise.files": {"open_file"},
    "leafwise.files.formats": {"mxnet_params", "numpy_files"},
    "leafwise.files.formats.array_files": {"write_file", "write_values"},
    "leafwise.files.formats.format": {"format_of_suffix"},
    "leafwise.files.writing.item_writer": {"Item"},
    "leafwise.files.writing.output": {"Output"},
    "leafwise.homes.torch.checkpoints.loading": {"TorchLoading"},
    "leafwise.homes.torch.checkpoints.rebuilding": {"TorchRebuilding"},
    "leafwise.homes.torch.checkpoints.saving": {"TorchSaving"},
    "leafwise.homes.torch.home": {"TorchHome"},
    "leafwise.homes.torch.parallel.sharding": {"TorchDistributing"},
    "leafwise.homes.torch.ties.tying": {"TorchTying"},
    "leafwise.homes.torch.ties.tied_views": {"TorchViewing"},
    "leafwise.homes.torch.training.averaging": {"TorchAveraging"},
    "leafwise.homes.torch.training.clipping": {"TorchClipping"},
    "leafwise.homes.torch.training.freezing": {"TorchFreezing"},
    "leafwise.homes.torch.training.packing": {"TorchPacking"},
    "leafwise.homes.torch.values.comparing": {"TorchComparing"},
    "leafwise.homes.torch.values.filling": {"TorchFilling"},
    "leafwise.homes.torch.values.measuring": {"TorchMeasuring"},
    "leafwise.homes.torch.values.tensor_values": {"choose"},
}


def imports() -> Iterator[tuple[str, str]]:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, path
                yield from ((str(node.module), alias.name) for alias in node.names)


def test_what_it_imports_from_leafwise_is_listed() -> None:
    used: dict[str, set[str]] = {}
    for module, name in imports():
        if module.split(".")[0] == "leafwise" and not (module == "leafwise" and name in leafwise.__all__):
            used.setdefault(module, set()).add(name)
    assert used == USED


def test_leafwise_does_not_know_of_it() -> None:
    folder = Path(leafwise.__file__).parent
    texts = [path.read_text("utf-8") for suffix in ("py", "h", "c") for path in folder.rglob(f"*.{suffix}")]
    assert len(texts) > 300
    assert [text for text in texts if "gluon" in text.lower()] == []


def test_it_requires_leafwise_of_the_same_version() -> None:
    (required,) = re.findall(r'"leafwise\[torch\]==(.*)"', (PACKAGE / "pyproject.toml").read_text("utf-8"))
    assert required == leafwise.__version__ == leafwise_gluon.__version__


def test_importing_it_registers_its_homes_even_without_metadata() -> None:
    """As where the package is only on the path: `-S` leaves out installed packages and their metadata."""
    code = """
import leafwise as lw
from leafwise_gluon import nn, np
net = nn.Dense(2, in_units=3)
net.initialize()
print(lw.tree(net)["weight"].shape, lw.tree({"x": np.ones((2,))})["x"].shape)
"""
    paths = [str(SOURCE.parent), *sys.path]
    script = f"import sys; sys.path[:] = {paths!r}\n{code}"
    output = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, encoding="utf-8", check=True)
    assert output.stdout == "(2, 3) (2,)\n"
