"""Results as plain data: parts of their JSON that several share, and rows for pandas."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.core.opaque import Opaque

if TYPE_CHECKING:
    from leafwise.core.leaf import SharedMemory, UndoneTie


class TableRows(NamedTuple):
    """The rows of a table, each by the names of its columns, and the column that is the key of a row, if any."""

    columns: list[str]
    rows: list[dict[str, Any]]
    key: str | None = None


def shared_memory_json(shared: "SharedMemory") -> dict[str, Any]:
    return {"reason": shared.reason, "paths": [str(leaf.path) for leaf in shared.leaves]}


def undone_json(undone: "UndoneTie") -> dict[str, Any]:
    return {"path": str(undone.path), "source": str(undone.source), "op": str(undone.op)}


def finite(value: Any) -> Any:
    """A number as it is, but None for NaN and infinity, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain_value(value: Any) -> Any:
    """A plain value as it is, if JSON supports it; otherwise the name of its type."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 1024 else f"<int of {value.bit_length()} bits>"
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no infinity or NaN
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if type(value) is dict:
        return {str(key): plain_value(item) for key, item in value.items()}
    return repr(value) if isinstance(value, Opaque) else f"<{type(value).__name__}>"
