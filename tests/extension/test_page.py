"""docs/extending.md shows the files of the example, and lists what an extension may import."""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
MSGPACK = ROOT / "src" / "leafwise" / "files" / "formats" / "flax_msgpack.py"


@pytest.mark.parametrize("name", ["toynet_home.py", "toynet_format.py"])
def test_the_page_shows_the_file(name: str) -> None:
    assert f"```python\n{(FOLDER / name).read_text('utf-8')}```" in PAGE


def test_the_page_shows_the_entry_points() -> None:
    assert re.search(r"```toml\n(.*?)```", PAGE, re.S)[1].strip() in (FOLDER / "pyproject.toml").read_text("utf-8")  # type: ignore[index]


@pytest.mark.parametrize("path", [*FOLDER.glob("*.py"), MSGPACK], ids=lambda path: path.name)
def test_extensions_import_only_what_the_page_lists(path: Path) -> None:
    if path.name in ("conftest.py", "test_page.py"):
        return
    listed = set(re.findall(r"^\| `(leafwise[\w.]*)` \|", PAGE, re.M))
    assert len(listed) > 10
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leafwise"):
            module = str(node.module)
            assert module in listed or module.rpartition(".")[0] in listed - {"leafwise"}, module
