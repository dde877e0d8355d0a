"""The source code of leafwise as syntax trees, for tests of the code itself."""

import ast
from pathlib import Path

import leafwise

SOURCE = Path(leafwise.__file__).parent


def nodes_of_sources() -> dict[str, list[ast.AST]]:
    """The nodes of the syntax tree of each file, the module first. They need seconds to make and much memory, so that a
    test file makes them once, in a fixture, and does not keep them."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): [*ast.walk(ast.parse(path.read_text("utf-8")))] for path in paths}
