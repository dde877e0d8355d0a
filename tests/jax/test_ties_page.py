"""The examples for JAX on the page about sharing give the output on it."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "share.md"


def test_the_examples_for_jax_give_the_output_on_the_page() -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {"__name__": "docs"}, PAGE.name, str(PAGE), 0)
    runner = doctest.DocTestRunner()
    report: list[str] = []
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
    assert runner.tries > 15
