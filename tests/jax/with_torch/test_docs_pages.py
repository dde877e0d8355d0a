"""The examples of the pages that need both PyTorch and JAX."""

from pathlib import Path

import pytest
from tests.test_docs import WITH_JAX, run_examples

_DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", WITH_JAX)
def test_the_examples_of_a_page_give_the_output_on_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    run_examples(_DOCS / name)
