"""The package is installed for these tests, as far as Python can see: on the path, with its entry points."""

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from leafwise.core import registry

FOLDER = Path(__file__).parent
collect_ignore = ["toynet.py", "toynet_format.py", "toynet_home.py"]  # they are imported once they are installed


def _forget() -> None:
    importlib.invalidate_caches()
    registry.forget_packages()


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text("utf-8"))["project"]
    site = tmp_path_factory.mktemp("site-packages")
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n", "utf-8")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{n} = {v}" for n, v in points.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(FOLDER)
    _forget()
    yield
    monkeypatch.undo()
    for name in ("toynet", "toynet_home", "toynet_format"):
        sys.modules.pop(name, None)
    _forget()
