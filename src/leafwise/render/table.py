"""Results as rows and columns, for pandas."""

from typing import Any, NamedTuple


class TableRows(NamedTuple):
    """The rows of a table, each by the names of its columns, and the column that is the key of a row, if any."""

    columns: list[str]
    rows: list[dict[str, Any]]
    key: str | None = None
