"""Paths: how they print, parse, compare, fetch and become code."""

import enum

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import leafwise as lw
from leafwise.core.path import Entry, Path, quote


def test_paths_are_equal_by_names_whatever_their_steps_are() -> None:
    attribute = Path([Entry("layers", "attribute"), Entry("0", "index", 0)])
    parsed = Path.parse("layers.0")
    assert attribute == parsed
    assert hash(attribute) == hash(parsed)
    assert {attribute: 1}[parsed] == 1
    assert attribute != "layers.0"


@given(st.lists(st.text(), max_size=5))
def test_every_path_prints_visibly_and_parses_back(names: list[str]) -> None:
    path = Path(Entry(name, "key", name) for name in names)
    assert str(path).isprintable()
    assert Path.parse(str(path)) == path


@pytest.mark.parametrize(
    ("name", "printed"),
    [("weight", "weight"), ("a.b", '"a.b"'), ("", '""'), ('say "hi"', '"say \\"hi\\""'), ("a\u202eb", '"a\\u202eb"')],
)
def test_an_entry_that_needs_it_is_quoted(name: str, printed: str) -> None:
    assert quote(name) == printed


@pytest.mark.parametrize("text", ["a..b", ".a", "a.", '"open', 'a"b"', '"a"b'])
def test_a_path_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(lw.QueryError, match="cannot read the path"):
        Path.parse(text)


def test_code_reaches_through_attributes_positions_and_keys() -> None:
    path = Path(
        [
            Entry("blocks", "attribute"),
            Entry("2", "index", 2),
            Entry("a-b", "attribute"),
            Entry("x", "key", "x"),
            Entry("class", "attribute"),
        ]
    )
    assert path.code("net") == "getattr(getattr(net.blocks[2], 'a-b')['x'], 'class')"


def test_a_hidden_step_fetches_and_codes_but_does_not_show() -> None:
    path = Path([Entry("module", "attribute", hidden=True), Entry("weight", "attribute")])
    assert str(path) == "weight"
    assert path == Path.parse("weight")
    assert path.code("ddp") == "ddp.module.weight"
    assert path.parent == Path()


def test_a_parsed_path_fetches_from_containers_and_flat_mappings() -> None:
    assert Path.parse("a.1.b").fetch({"a": [0, {"b": 5}]}) == 5
    assert Path.parse("a.1.b").fetch({"a.1.b": 6}) == 6
    assert Path.parse("0").fetch({0: "int key"}) == "int key"


def test_a_fetch_that_leads_nowhere_says_where_it_stopped() -> None:
    with pytest.raises(lw.PathError, match=r'nothing at "a.2.b": list below "a" has no 2'):
        Path.parse("a.2.b").fetch({"a": [0]})


def test_a_path_can_be_made_from_what_it_prints() -> None:
    path = lw.tree({"a.b": {"c*": torch.zeros(1)}}).items()[0][0]
    assert str(path) == '"a.b"."c*"'
    assert eval(repr(path), {"Path": lw.Path}) == path
    assert len(lw.tree({"a.b": {"c*": torch.zeros(1), "cc": torch.zeros(1)}}).select(str(path))) == 1


def test_a_parsed_path_fetches_from_a_state_dict_inside_another() -> None:
    state = nn.Linear(2, 2).state_dict()
    assert lw.Path.parse("model.0.weight").fetch({"model": {"0.weight": 5}}) == 5
    assert lw.Path.parse("model.weight").fetch({"model": state}) is state["weight"]


def test_keys_of_any_kind_fetch() -> None:
    class Color(enum.Enum):
        RED = 1

    obj = {Color.RED: torch.zeros(1), (1, 2): torch.zeros(2), 1.5: torch.zeros(3)}
    for path, leaf in lw.tree(obj).items():
        assert path.fetch(obj) is leaf.value


def test_the_paths_of_a_very_long_sequential_have_code() -> None:
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(5000)])
    assert lw.tree(net).items()[-1][0].code("net") == "net[4999].weight"
    assert lw.tree(net[10:]).items()[-1][0].code("net") == "net[4989].weight"
