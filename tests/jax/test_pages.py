"""The examples for JAX in the docs, and of the functions that are for JAX only, give the output on the page."""

import doctest
from pathlib import Path

import pytest
from tests.test_docs import JAX, PYTORCH, ROOT, run_examples

import leafwise.iterate.group_labels
import leafwise.iterate.trainable

PAGES = {"jax.md": PYTORCH, "jax-sharding.md": PYTORCH, "share.md": JAX}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_give_the_output_on_it(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    run_examples(ROOT / "docs" / page, PAGES[page])


@pytest.mark.parametrize("module", [leafwise.iterate.group_labels, leafwise.iterate.trainable])
def test_the_examples_of_functions_for_jax_run(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.failed == 0
    assert results.attempted > 0
