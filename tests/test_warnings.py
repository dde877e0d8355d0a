"""Which warnings are errors in tests: those of leafwise, but not those about the source of another library."""

import sys
import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

# Python 3.11 raises a DeprecationWarning for the first two, and later versions raise a SyntaxWarning.
SOURCES = [r'"an invalid \d escape"', "1or 2", "() is ()"]


def compiled(file: Path, source: str) -> None:
    """Imports a module whose bytecode is not cached."""
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    spec = spec_from_file_location("compiled", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("folder", ["site-packages", "site-packages/library/parts", "dist-packages/leafwise_plugin"])
def test_a_library_without_cached_bytecode_can_be_imported(folder: str, source: str, tmp_path: Path) -> None:
    compiled(tmp_path / "lib" / folder / "library.py", source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("folder", ["src/leafwise", "tests", "site-packages/leafwise/files", "dist-packages/leafwise"])
def test_a_warning_about_the_source_of_leafwise_is_an_error(folder: str, source: str, tmp_path: Path) -> None:
    with pytest.raises(SyntaxError):
        compiled(tmp_path / folder / "own.py", source)


@pytest.mark.parametrize("category", [DeprecationWarning, SyntaxWarning])
def test_a_warning_that_a_library_raises_when_it_runs_is_an_error(category: type[Warning]) -> None:
    with pytest.raises(category, match="use something else"):
        warnings.warn_explicit("use something else", category, "lib/site-packages/library.py", 3, "library")
