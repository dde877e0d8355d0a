"""Text as MXNet writes it: indented blocks, and long lists cut in the middle."""

from collections.abc import Iterable


def indented(text: str, spaces: int = 2) -> str:
    """The text with spaces before every line but the first."""
    return text.replace("\n", "\n" + spaces * " ")


def brief_list(names: Iterable[str], limit: int = 7) -> str:
    """Names in quotes; of a long list, its beginning and its end."""
    entries = list(names)
    if len(entries) <= limit:
        return ", ".join(f"'{entry}'" for entry in entries)
    return f"{brief_list(entries[: limit // 2], limit)}, ..., {brief_list(entries[-limit // 2 :], limit)}"
