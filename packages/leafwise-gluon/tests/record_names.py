"""Writes the public modules and names of an installed MXNet to `src/leafwise_gluon/names/`.

Run it with a Python in which the real MXNet is installed, once a version: `python tests/record_names.py`.
The format is described in `src/leafwise_gluon/names/inventory.py`.
"""

import importlib
import inspect
import pkgutil
import sys
import textwrap
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

NAMES = Path(__file__).parents[1] / "src" / "leafwise_gluon" / "names"

OTHER_MODULES = ("logging", "numpy", "os", "random", "sys", "time")  # which `import *` passes on
WITH_FOREIGN_CLASSES = ("mxnet.numpy", "mxnet.base")  # np.float32 is a class of NumPy, for example


def is_public(path: str) -> bool:
    return not any(part.startswith(("_", "gen_")) for part in path.split("."))


def modules() -> dict[str, ModuleType]:
    """Every public module that imports, and those that MXNet makes while it is imported."""
    import mxnet

    for info in pkgutil.walk_packages(mxnet.__path__, "mxnet.", onerror=lambda name: None):
        # A broken module may raise anything, and the one of ONNX is a setup script.
        if is_public(info.name) and not info.name.endswith((".libmxnet", ".setup")):
            try:
                importlib.import_module(info.name)
            except ImportError as error:
                print(f"{info.name}: {error}", file=sys.stderr)
    return {
        name: sys.modules[name] for name in sorted(sys.modules) if name.partition(".")[0] == "mxnet" and is_public(name)
    }


def from_mxnet(value: Any) -> bool:
    return str(getattr(value, "__module__", None)).partition(".")[0] == "mxnet"


def entry(value: Any, name: str, module: ModuleType, known: dict[str, ModuleType]) -> tuple[str, str] | None:
    """The kind of the line in the module's section and what stands there; None if the name is not public."""
    exported = name in getattr(module, "__all__", ())
    if isinstance(value, ModuleType):
        if value.__name__ in known:
            same = value.__name__ == f"{module.__name__}.{name}"
            wanted = hasattr(module, "__path__") or not hasattr(module, "__all__")
            return ("module", name if same else f"{name}={value.__name__}") if wanted else None
        foreign = not hasattr(module, "__all__") and value.__name__ in (
            "os",
            "sys",
            "numpy",
            "logging",
            "time",
            "random",
        )
        return ("other module", name if value.__name__ == name else f"{name}={value.__name__}") if foreign else None
    if inspect.isclass(value) or inspect.isroutine(value):
        if not from_mxnet(value) and not exported and module.__name__ not in WITH_FOREIGN_CLASSES:
            return None
        home = known.get(value.__module__) if from_mxnet(value) else None
        if home is not None and home is not module and vars(home).get(name) is value:
            return f"from {home.__name__}", name
        return ("class" if inspect.isclass(value) else "function"), name
    if type(value).__module__ == "__future__":
        return None
    for home in (known["mxnet.base"], known["mxnet.gluon.parameter"]):  # whose tuples of types other modules import
        if home is not module and isinstance(value, tuple) and vars(home).get(name) is value:
            return f"from {home.__name__}", name
    return "value", name


def section(module: ModuleType, known: dict[str, ModuleType]) -> str:
    lines: dict[str, list[str]] = {}
    for name in sorted(vars(module)):
        if not name.startswith("_"):
            place = entry(vars(module)[name], name, module, known)
            if place is not None:
                hidden = "hidden " if name not in getattr(module, "__all__", [name]) else ""
                lines.setdefault(hidden + place[0], []).append(place[1])
    text = f"{module.__name__}\n"
    for kind in sorted(lines):
        line = f"{kind}: {' '.join(lines[kind])}"
        text += textwrap.fill(line, 118, initial_indent="  ", subsequent_indent="    ", break_long_words=False) + "\n"
    return text


def main() -> None:
    warnings.simplefilter("ignore")
    known = modules()
    version = sys.modules["mxnet"].__version__
    sections = [section(module, known) for module in known.values()]
    target = NAMES / f"mxnet{version[0]}.txt"
    target.write_text(
        f"# The public names of MXNet {version}, recorded by tests/record_names.py.\n" + "".join(sections)
    )


if __name__ == "__main__":
    main()
