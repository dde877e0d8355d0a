"""Plain values beside arrays come back equal in value and type, or the save is refused."""

import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Hashable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.long import short_or_long
from torch import nn
from torch.distributed import checkpoint

import leafwise as lw


def identical(one: Any, other: Any) -> bool:
    """Equal in value and in type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        if isinstance(one, defaultdict) and one.default_factory is not other.default_factory:
            return False
        pairs = zip(one.items(), other.items(), strict=False)
        same = all(identical(a, b) and identical(x, y) for (a, x), (b, y) in pairs)
        return len(one) == len(other) and same  # in their order, too
    if isinstance(one, deque) and one.maxlen != other.maxlen:
        return False
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(identical(item, each) for each in other) for item in one)
    if isinstance(one, float | complex | np.generic):
        return repr(one) == repr(other)  # NaN and -0.0 included
    return bool(one == other)


numpy_scalars = st.one_of(
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 255).map(np.uint8),
    st.booleans().map(np.bool_),
    st.complex_numbers(width=64).map(np.complex64),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).map(np.str_),
    st.floats(-100, 100).map(ml_dtypes.bfloat16),
)
hashable: st.SearchStrategy[Hashable] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(),
    st.complex_numbers(allow_nan=False), st.tuples(st.integers(), st.text()), st.frozensets(st.integers(), max_size=3),
)  # fmt: skip
atoms = st.one_of(
    hashable, st.floats(), numpy_scalars, st.binary().map(bytearray),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9)),
    st.sets(hashable, max_size=3), st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
)  # fmt: skip


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(hashable, inner, max_size=4)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        dicts,
        dicts.map(OrderedDict),
        dicts.map(lambda found: defaultdict(list, found)),
        st.dictionaries(hashable, st.integers(), max_size=4).map(Counter),
        st.lists(inner, max_size=4).map(lambda items: deque(items, 7)),
    )


nested = st.recursive(atoms, containers, max_leaves=12)


@given(value=nested)
@settings(max_examples=short_or_long(60, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_saved_comes_back_equal_and_of_the_same_type(
    value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("values", numbered=True) / "a.safetensors"
    lw.save({"w": torch.ones(2), "x": value}, path)
    empty = type(value)() if isinstance(value, list | tuple | dict | set) else 0
    for target in (value, empty, None, {"another": [1]}, [{"thing": 5}]):
        loaded = lw.load({"w": torch.zeros(2), "x": target}, path)
        assert identical(loaded["x"], value)
        assert torch.equal(loaded["w"], torch.ones(2))


@given(values=st.lists(nested, min_size=1, max_size=4))
@settings(max_examples=short_or_long(25, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_values_between_arrays_come_back_in_containers_of_their_own(
    values: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("values", numbered=True) / "a.safetensors"

    def mixed(parts: list[Any], number: float) -> Any:
        """Containers that hold arrays beside the values, so that they are nodes of the tree."""
        array = torch.full((2,), number)
        return {"list": [array, *parts], "deep": {"tuple": (array, [*parts, array])}, 3: array, "by number": {7: parts}}

    lw.save(mixed(values, 1.0), path)
    for parts in (values, [None] * len(values)):
        loaded = lw.load(mixed(parts, 0.0), path)
        assert identical(loaded["list"][1:], values)
        assert identical(loaded["deep"]["tuple"][1][:-1], values)
        assert identical(loaded["by number"], {7: values})


def test_a_list_that_grew_and_a_mapping_with_new_keys_come_back(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    log, best = [{"loss": 1.0}, {"loss": 2.0}], {"a": 1, "b": 2}
    path = lw.save({"m": net, "log": log, "best": best}, tmp_path / "a.safetensors")
    loaded = lw.load({"m": net, "log": [], "best": {"a": 0}}, path)
    assert (loaded["log"], loaded["best"]) == (log, best)


@pytest.mark.parametrize("shards", [None, 8])
def test_pytorch_files_and_shards_give_the_same_values(shards: int | None, tmp_path: Path) -> None:
    values = {"log": [{"loss": 1.0}, {"n": (1, [None, {}])}], "by number": {1: "a", True + 1: "b"}, "none": None}
    state = {"w": torch.ones(2), "v": torch.ones(3), **values}
    torch.save(state, tmp_path / "a.pt")
    template = {"w": torch.zeros(2), "v": torch.zeros(3), **dict.fromkeys(values)}
    from_torch = lw.load({**template}, tmp_path / "a.pt")
    ours = lw.load({**template}, lw.save(state, tmp_path / "b.safetensors", shard_size=shards))
    for name, value in values.items():
        assert identical(ours[name], value)
        assert identical(from_torch[name], value)


Point = namedtuple("Point", "x y")


class Config(dict):  # type: ignore[type-arg]
    """A custom subclass of dict."""


@pytest.mark.parametrize(
    "value", [[Point(1, 2)], Config(a=1, b=[2]), MappingProxyType({"a": 1}), defaultdict(lambda: 3, a=1)]
)
def test_types_that_leafwise_cannot_rebuild_are_loaded_into_an_existing_container(value: Any, tmp_path: Path) -> None:
    path = lw.save({"w": torch.ones(2), "x": value}, tmp_path / "a.safetensors")
    loaded = lw.load({"w": torch.zeros(2), "x": value}, path)
    assert type(loaded["x"]) is type(value)
    assert loaded["x"] == value
    for target in (None, [], {}, {"a": 0}):
        plan = lw.plan({"w": torch.zeros(2), "x": target}, path)
        assert not plan.holds
        assert "x is stored in parts in the checkpoint" in plan.problems[0].message


def test_a_value_that_a_container_of_the_target_has_no_entry_for_is_a_problem(tmp_path: Path) -> None:
    path = lw.save({"part": {"w": torch.ones(2), "a": 1, "b": 2}, "epoch": 3}, tmp_path / "a.safetensors")
    target = {"part": {"w": torch.zeros(2), "a": 0}}
    plan = lw.plan(target, path)
    assert [problem.name for problem in plan.problems] == ["part.b"]
    assert plan.notes == ["1 plain value of the checkpoint not used: epoch"]
    assert lw.load(target, path, allow={"unexpected"})["part"]["a"] == 1


def test_arrays_do_not_come_back_into_a_plain_value(tmp_path: Path) -> None:
    path = lw.save({"w": torch.ones(2), "log": [{"loss": torch.ones(1), "n": 1}]}, tmp_path / "a.safetensors")
    for target in ([], None, [{"n": 0}]):
        plan = lw.plan({"w": torch.zeros(2), "log": target}, path, allow={"unexpected"})
        assert not plan.holds


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ({"a": {1, object()}}, "cannot save x.a: leafwise does not save object"),
        (type("Number", (int,), {})(5), "Number"),
    ],
)
def test_what_would_not_come_back_is_refused_by_name(value: Any, cause: str, tmp_path: Path) -> None:
    with pytest.raises(lw.WalkError, match=cause):
        lw.save({"w": torch.ones(1), "x": value}, tmp_path / "a.safetensors")


def test_values_nested_too_deeply_or_in_themselves_are_refused(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(99):
        deep = {"in": [deep]} if isinstance(deep, int) else [deep]
    path = lw.save({"w": torch.ones(1), "x": deep}, tmp_path / "a.safetensors")
    assert identical(lw.load({"w": torch.ones(1), "x": None}, path)["x"], deep)
    loop: list[Any] = [1]
    loop.append(loop)
    for value in ([deep, [deep]], [[deep]] and [[[deep]]], loop):
        with pytest.raises(
            lw.WalkError, match=r"cannot save or load x.*: more than 100|x.1: it is x, which contains it"
        ):
            lw.save({"w": torch.ones(1), "x": value}, tmp_path / "b.safetensors")


def test_a_container_that_is_in_parts_in_the_checkpoint_is_put_together(tmp_path: Path) -> None:
    path = lw.save({"w": torch.ones(1), "x.0.loss": 1.5, "x.1.loss": 2.5, "x.1.n": [1, 2]}, tmp_path / "a.safetensors")
    target = {"w": torch.zeros(1), "x": [{"loss": 0.0}, {"loss": 0.0, "n": []}]}
    assert lw.load(target, path)["x"] == [{"loss": 1.5}, {"loss": 2.5, "n": [1, 2]}]
    for value in ([], None, [{"loss": 0.0}]):
        plan = lw.plan({"w": torch.zeros(1), "x": value}, path)
        assert [problem.kind for problem in plan.problems] == ["missing"]
        assert "stored in parts in the checkpoint (x.0.loss, x.1.loss, x.1.n)" in plan.problems[0].message


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_plain_containers_in_distributed_checkpoints_of_pytorch_load(tmp_path: Path) -> None:
    values: dict[str, Any] = {"x": [{"loss": 1.5}, {"loss": 2.5, "n": [1, 2]}], "y": {"a": [1, {"b": 2}]}}
    checkpoint.save({"w": torch.ones(3), **values}, checkpoint_id=tmp_path / "a", no_dist=True)
    target = {"w": torch.zeros(3), "x": [{"loss": 0.0}, {"loss": 0.0, "n": []}], "y": {"a": [0, {"b": 0}]}}
    loaded = lw.load(target, tmp_path / "a")
    assert {name: loaded[name] for name in values} == values


def test_nan_and_signed_zero_are_kept(tmp_path: Path) -> None:
    values = [math.nan, -math.inf, -0.0, np.float16("nan"), complex(math.nan, -0.0)]
    path = lw.save({"w": torch.ones(1), "x": values}, tmp_path / "a.safetensors")
    assert identical(lw.load({"w": torch.ones(1), "x": []}, path)["x"], values)


@pytest.mark.parametrize(
    "value", [np.str_(""), np.bytes_(b""), np.str_("a\0"), "\ud83d\ude00", np.longlong(1), deque([np.array(1.5)])]
)
def test_what_would_be_read_as_something_else_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(lw.WalkError, match=r"cannot save x(\.0)?: (leafwise does not save|this .* holds arrays)"):
        lw.save({"w": torch.ones(2), "x": [value]}, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("state", [{"": {"a": 1}}, {"__metadata__": 1}, {".": 1}, {"a": {"": torch.ones(1)}}, {"": 1}])
def test_names_that_no_path_leads_to_are_refused(state: Any, tmp_path: Path) -> None:
    with pytest.raises(lw.WalkError, match="cannot save"):
        lw.save({"w": torch.ones(2), **state}, tmp_path / "a.safetensors")


def test_values_that_change_while_a_save_is_written_are_saved_as_they_were(tmp_path: Path) -> None:
    count = short_or_long(10_000, 100_000)
    log: list[Any] = [{"loss": float(number)} for number in range(count)]
    best = {"a": 1}
    saving = lw.save({"w": torch.ones(2), "log": log, "best": best}, tmp_path / "a.safetensors", background=True)
    log.append("later")
    best["a"] = 2
    loaded = lw.load({"w": torch.zeros(2), "log": None, "best": None}, saving.wait())
    assert len(loaded["log"]) == count
    assert loaded["best"] == {"a": 1}


def test_one_list_in_two_places_cannot_hold_two_values(tmp_path: Path) -> None:
    path = lw.save({"a": [torch.ones(2), 1], "b": [torch.ones(2), 2]}, tmp_path / "a.safetensors")
    shared: list[Any] = [torch.zeros(2), None]
    with pytest.raises(lw.LoadError, match=r"a\.1 and b\.1 are the same value in the model"):
        lw.load({"a": shared, "b": shared}, path)
    same = lw.save({"a": [torch.ones(2), 1], "b": [torch.ones(2), 1]}, tmp_path / "b.safetensors")
    assert lw.load({"a": shared, "b": shared}, same)["b"][1] == 1


def test_a_rename_that_gives_two_values_one_name_is_an_error(tmp_path: Path) -> None:
    path = lw.save({"w": torch.ones(2), "a": 1, "b": 2}, tmp_path / "a.safetensors")
    with pytest.raises(lw.QueryError, match="rename= gives two values the same name, 'b'"):
        lw.load({"w": torch.zeros(2), "b": 0}, path, rename={"a": "b"})


def test_a_list_that_was_longer_is_not_cut(tmp_path: Path) -> None:
    path = lw.save([torch.ones(2), 1, 2], tmp_path / "a.safetensors")
    with pytest.raises(lw.LoadError, match="unexpected: the value 2 is in the checkpoint but not in the model"):
        lw.load([torch.zeros(2), 9], path)


def test_values_of_a_live_source_are_copied() -> None:
    source = {"w": torch.ones(2), "log": [1]}
    loaded = lw.load({"w": torch.zeros(2), "log": []}, source)
    source["log"].append(2)
    assert loaded["log"] == [1]


def test_empty_containers_are_filled_and_empty_ones_are_saved(tmp_path: Path) -> None:
    path = lw.save({"losses": [0.5, 0.4], "seen": (1, 2), "cfg": {"a": {"b": 1}}, "e": []}, tmp_path / "a.safetensors")
    assert lw.load({"losses": [], "seen": (), "cfg": {}, "e": [5]}, path) == {
        "losses": [0.5, 0.4],
        "seen": (1, 2),
        "cfg": {"a": {"b": 1}},
        "e": [],
    }


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)


def test_plain_values_of_a_subtree_come_back_beside_ties(tmp_path: Path) -> None:
    tied = Two()
    tied.b.weight = tied.a.weight

    def make(model: nn.Module, number: int) -> dict[str, Any]:
        return {"c": {"step": number + 1}, "d": {"step": number + 2}, "model": model, "step": number}

    run: Any = {"pad": {"k": 1}, "b": make(Two(), 0)}
    lw.load(lw.tree(run)["b"], lw.save(make(tied, 10), tmp_path / "a.safetensors"))
    assert (run["b"]["c"]["step"], run["b"]["d"]["step"], run["b"]["step"]) == (11, 12, 10)
    assert run["b"]["model"].b.weight is run["b"]["model"].a.weight
