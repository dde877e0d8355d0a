"""Names as patterns: each pattern stands for exactly the names of its group."""

import re
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from leafwise.core.pairing.name_groups import ALL, FEWEST, grouped, grouped_renames

ENTRIES = ["0", "1", "2", "10", "007", "a", "b", "weight", "\0", "权"]
NAMES = st.lists(st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=4).map(".".join), unique=True, max_size=40)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern stands for a name."""
    parts = re.split(r"(\{[^}]*\})", pattern.removesuffix(ALL))
    text = "".join(_numbers(part) if part.startswith("{") else re.escape(part) for part in parts)
    return re.fullmatch(text + (".*" if pattern.endswith(ALL) else ""), name) is not None


def _numbers(part: str) -> str:
    numbers: list[str] = []
    for run in part[1:-1].split(","):
        first, _, last = run.partition("..")
        numbers += map(str, range(int(first), int(last or first) + 1))
    return f"({'|'.join(numbers)})"


@given(NAMES, NAMES, st.booleans())
def test_every_name_is_in_one_group_whose_pattern_stands_for_nothing_else(
    names: list[str], others: list[str], whole: bool
) -> None:
    among = [*names, *(other for other in others if other not in names)]
    groups = grouped(names, among, whole=whole)
    assert sorted(name for group in groups for name in group.names) == sorted(names)
    for pattern, inside in groups:
        if len(inside) == 1:
            assert pattern == inside[0]
        else:
            assert len(inside) >= FEWEST
            assert {name for name in among if matches(pattern, name)} == set(inside)


@given(st.lists(st.tuples(NAMES.filter(bool), NAMES.filter(bool)), max_size=6))
def test_every_rename_is_in_one_group(lists: list[tuple[list[str], list[str]]]) -> None:
    pairs = list(dict.fromkeys((old, new) for olds, news in lists for old, new in zip(olds, news, strict=False)))
    groups = grouped_renames(pairs)
    assert sorted(pair for group in groups for pair in group.pairs) == sorted(pairs)
    for group in groups:
        if len(group.pairs) == 1 and ALL not in group.old + group.new:
            assert (group.old, group.new) == group.pairs[0]
        for old, new in group.pairs:
            assert matches(group.old, old)
            assert matches(group.new, new)


def test_layers_become_ranges() -> None:
    names = [f"layers.{layer}.experts.{expert}.w" for layer, expert in product(range(12), range(8))]
    (group,) = grouped(names, [*names, *(f"layers.{layer}.norm" for layer in range(12))])
    assert group.pattern == "layers.{0..11}.experts.*"
    odd = [f"layers.{layer}.w" for layer in (0, 1, 2, 5, 7)]
    (group,) = grouped(odd, [*odd, *(f"layers.{layer}.v" for layer in range(8))])
    assert group.pattern == "layers.{0..2,5,7}.w"


def test_a_prefix_that_is_replaced_is_one_group() -> None:
    ends = [f"encoder.layer.{layer}.{name}" for layer in range(12) for name in ("weight", "bias")]
    pairs = [(f"bert.{end}", f"backbone.{end}") for end in ends] + [("cls.weight", "head.weight")]
    groups = grouped_renames(pairs)
    assert [(group.old, group.new, len(group.pairs)) for group in groups] == [
        ("bert.*", "backbone.*", 24),
        ("cls.weight", "head.weight", 1),
    ]
    renamed = [(f"h.{layer}.query.weight", f"layers.{layer}.q.weight") for layer in range(4)]
    assert grouped_renames(renamed)[0][:2] == ("h.{0..3}.query.*", "layers.{0..3}.q.*")
