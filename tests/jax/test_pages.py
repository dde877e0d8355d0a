"""The examples of the pages on JAX, and of the functions that are for JAX only, run and give the output on the page."""

import doctest
import re
from pathlib import Path

import pytest

import leafwise.iterate.group_labels
import leafwise.iterate.trainable

DOCS = Path(__file__).parent.parent.parent / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_give_the_output_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    blocks = _BLOCK.findall((DOCS / "jax.md").read_text("utf-8"))
    source = "\n".join(re.sub(r"^$", "<BLANKLINE>", block.rstrip("\n"), flags=re.MULTILINE) + "\n" for block in blocks)
    example = doctest.DocTestParser().get_doctest(source, {"__name__": "docs"}, "jax.md", "jax.md", 0)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)
    assert results.failed == 0, "".join(report)
    assert results.attempted > 30


@pytest.mark.parametrize("module", [leafwise.iterate.group_labels, leafwise.iterate.trainable])
def test_the_examples_of_functions_for_jax_run(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.failed == 0
    assert results.attempted > 0
