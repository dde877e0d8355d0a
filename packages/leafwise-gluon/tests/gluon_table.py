"""The generated part of docs/gluon.md: what is the same as in MXNet, different, or missing.

python tests/gluon_table.py            prints it
python tests/gluon_table.py --write    also writes it into docs/gluon.md
"""

import sys
import textwrap
from collections import defaultdict
from pathlib import Path

from leafwise_gluon.dialect import Version
from leafwise_gluon.names.dialects import DIALECTS
from leafwise_gluon.names.inventory import places
from leafwise_gluon.names.table import TABLE, NameRow, missing_row, status

PAGE = Path(__file__).parent.parent / "docs" / "gluon.md"
START, END = "<!-- the tables start -->", "<!-- the tables end -->"
VERSIONS: tuple[Version, ...] = (1, 2)
SHORT = {"numpy_extension": "npx", "ndarray": "nd", "numpy": "np", "symbol": "sym", "initializer": "init"}


def shown_module(module: str) -> str:
    first, *parts = module.split(".")
    return ".".join([first.replace("mxnet", "mx"), *(SHORT.get(part, part) for part in parts)])


def public_place(version: Version, path: str) -> tuple[str, str]:
    """The module in which users find a name, and the name: the shortest among those that contain its module."""

    def rank(place: tuple[str, str]) -> tuple[bool, int, str]:
        return not path.startswith(f"{place[0]}."), place[0].count("."), place[0]

    return min(places(version)[path], key=rank)


def by_module(paths: dict[str, set[Version]]) -> dict[str, dict[str, set[Version]]]:
    """Names by the module in which users find them, with the versions that have them."""
    modules: dict[str, dict[str, set[Version]]] = defaultdict(lambda: defaultdict(set))
    for path, versions in paths.items():
        for version in versions:
            module, name = public_place(version, path)
            modules[shown_module(module)][name].add(version)
    return modules


def listed(names: dict[str, set[Version]]) -> str:
    """Names in the order of the alphabet; those of one version only are marked."""
    marks = {frozenset((1,)): "¹", frozenset((2,)): "²"}
    return " ".join(f"`{name}`{marks.get(frozenset(names[name]), '')}" for name in sorted(names))


def split_up() -> tuple[dict[str, set[Version]], dict[int, dict[str, set[Version]]]]:
    """The paths that exist, and the missing ones by the number of their row."""
    existing: dict[str, set[Version]] = defaultdict(set)
    missing: dict[int, dict[str, set[Version]]] = defaultdict(lambda: defaultdict(set))
    for version in VERSIONS:
        for path in places(version):
            if status(path, version) == "missing":
                row = missing_row(path)
                assert row is not None, path
                missing[TABLE.index(row)][path].add(version)
            else:
                existing[path].add(version)
    return existing, missing


def names_of(row: NameRow) -> str:
    return ", ".join(f"`{shown_module(path)}`" for path in row.paths)


def part() -> str:
    existing, missing = split_up()
    lines = ["| what | MXNet 1.x | MXNet 2.x |", "|---|---|---|"]
    lines += [f"| {row.what} | {row.in_1} | {row.in_2} |" for row in DIALECTS]
    lines += ["", "### Different from MXNet", "", "| name | how |", "|---|---|"]
    lines += [f"| {names_of(row)} | {row.note} |" for row in TABLE if row.status == "different"]
    lines += ["", "### Missing", "", "Using one of these raises an error with what is said here.", ""]
    lines += ["| name | instead |", "|---|---|"]
    lines += [f"| {names_of(row)} | {row.note} |" for row in TABLE if row.status == "missing" and not row.is_rest]
    for number, row in enumerate(TABLE):
        if row.is_rest and number in missing:
            modules = by_module(missing[number])
            names = "; ".join(f"of `{module}` {listed(names)}" for module, names in sorted(modules.items()))
            lines.append(f"| {names} | {row.note} |")
    lines += ["", "### Included", "", "¹ in MXNet 1.x only, ² in 2.x only.", ""]
    for module, names in sorted(by_module(existing).items()):
        lines += [
            *textwrap.wrap(f"**`{module}`** {listed(names)}", 120, break_long_words=False, break_on_hyphens=False),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def page_with(text: str, page: str) -> str:
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{text}{END}{after}"


if __name__ == "__main__":
    print(part())
    if "--write" in sys.argv:
        PAGE.write_text(page_with(part(), PAGE.read_text("utf-8")), "utf-8")
