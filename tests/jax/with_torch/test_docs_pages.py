"""The examples of the pages that need both PyTorch and JAX."""

from pathlib import Path

import pytest
from tests.test_docs import BOTH, ROOT, WITH_JAX, run_examples

PAGES = ["README.md", "docs/guide.md", *(f"docs/{name}" for name in WITH_JAX)]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_give_the_output_on_it(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    run_examples(ROOT / page, BOTH)
