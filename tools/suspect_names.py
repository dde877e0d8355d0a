"""Writes the names that `lw.check` knows in pickles into docs/check.md; a test compares them."""

from pathlib import Path

from tools.pages import put_table

from leafwise.files.pickles.pickle_calls import DANGEROUS_MODULES, DANGEROUS_NAMES, HARMLESS_NAMES

PAGE = Path(__file__).parent.parent / "docs" / "check.md"
LISTS = {
    "dangerous modules": DANGEROUS_MODULES,
    "dangerous names": DANGEROUS_NAMES,
    "harmless names": HARMLESS_NAMES,
}


def listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))


if __name__ == "__main__":
    for label, names in LISTS.items():
        put_table(PAGE, f"<!-- {label} -->", f"<!-- /{label} -->", listed(names))
