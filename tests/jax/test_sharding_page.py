"""The examples in docs/jax-sharding.md give the output on the page."""

import doctest
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "jax-sharding.md"


def test_the_examples_give_the_output_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    blocks = re.findall(r"^```python\n(.*?)\n*^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    source = "\n".join(re.sub(r"^$", "<BLANKLINE>", block, flags=re.MULTILINE) for block in blocks)
    test = doctest.DocTestParser().get_doctest(source, {"__name__": "docs"}, PAGE.name, str(PAGE), 0)
    runner = doctest.DocTestRunner()
    report: list[str] = []
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
    assert runner.tries > 8
