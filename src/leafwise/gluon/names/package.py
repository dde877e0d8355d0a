"""Names of `leafwise.gluon` that are looked up when they are used: those of `mxnet` and of `mxnet.gluon`."""

from typing import Any

from leafwise.gluon import dialect
from leafwise.gluon.names.implementations import implementation, modules_for
from leafwise.gluon.names.inventory import inventory
from leafwise.gluon.names.table import instead_of


def attribute(name: str) -> tuple[Any, str]:
    """What `mxnet.gluon` or `mxnet` has under a name, in the present dialect or in the other; or why it is missing."""
    why_not = f"module 'leafwise.gluon' has no attribute {name!r}"
    if name.startswith("_"):
        return None, why_not
    now = dialect.version()
    for version in (now, 2 if now == 1 else 1):
        for module in ("mxnet.gluon", "mxnet"):
            entry = inventory(version)[module].get(name)
            if entry is None or entry.kind == "other module":
                continue
            replaced = modules_for(entry.home) if entry.kind == "module" else implementation(version, module, name)
            if replaced:
                return replaced[0], ""
            path = f"{entry.path}.*" if entry.kind == "module" else entry.path
            why_not = f"the Gluon front end has no {name}; {instead_of(path)}"
    return None, why_not
