"""The table of results: which module renders which kind."""

import importlib

import pytest

import leafwise as lw
from leafwise.core.outline import Shown
from leafwise.render import RESULTS


def kinds(cls: type[Shown]) -> set[str]:
    return {vars(cls).get("result_kind", "")}.union(*map(kinds, cls.__subclasses__())) - {""}


def test_the_table_names_a_module_for_every_kind_of_result() -> None:
    for name in lw.__all__:
        getattr(lw, name)  # imports the classes of all results
    for module_name in RESULTS.values():
        importlib.import_module(module_name)
    assert kinds(Shown) == set(RESULTS)


@pytest.mark.parametrize(("kind", "module_name"), RESULTS.items())
def test_the_module_of_a_result_has_its_name_and_renders_it(kind: str, module_name: str) -> None:
    assert module_name == f"leafwise.render.{kind}"
    module = importlib.import_module(module_name)
    assert callable(module.to_json)
    assert hasattr(module, "lower") or (hasattr(module, "to_text") and hasattr(module, "to_html"))
