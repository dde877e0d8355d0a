"""The linter for plain English, which `make check` runs, finds phrases and names."""

import ast

from tools.plain_english import problems_of_names, problems_of_text


def test_phrases_are_found() -> None:
    found = dict(problems_of_text(enumerate(["which the model has not.", "which the model does not have"])))
    assert list(found) == [0]


def test_words_in_names_are_found() -> None:
    code = "class OptimizerFronts:\n  def is_told(self, crew): self.rooms = alike = 1\n  def font(self): ..."
    found = [problem.split(":")[0] for _, problem in problems_of_names(ast.parse(code), "frontier")]
    assert sorted(found) == [f"the name {name}" for name in ("OptimizerFronts", "alike", "crew", "is_told", "rooms")]
