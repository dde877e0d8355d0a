"""`lw.stats` of sharded models on real ranks, compared with the same model in one process."""

import os
import time
from typing import Any

import pytest
import torch
from tests.distributed.models import Net, even, fsdp, sharded_models
from tests.distributed.ranks import received_bytes, run_ranks
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import leafwise as lw
from leafwise.results import Stats

COUNTS = pytest.mark.parametrize("count", [2, 4])
EXACT = ("count", "nan", "posinf", "neginf", "zeros", "subnormals", "min", "max", "histogram")
ROUNDED = ("mean", "std", "l1", "l2")


def whole_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """All leaves of a model, gathered."""
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: full(value) for name, value in values.items()}


def full(value: Any) -> torch.Tensor:
    return value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()  # type: ignore[no-any-return]


def assert_same_rows(table: Stats, expected: Stats, where: str) -> None:
    assert set(table) == set(expected), where
    for path in table:
        row, other = table[path], expected[path]
        assert (row.dtype, row.shape) == (other.dtype, other.shape), (where, path)
        for name in EXACT:
            same = getattr(row, name), getattr(other, name)
            assert same[0] == same[1] or same[0] != same[0], (where, path, name, same)
            assert type(same[0]) is type(same[1]), (where, path, name)
        for name in ROUNDED:
            assert getattr(row, name) == pytest.approx(getattr(other, name), rel=1e-12, abs=1e-12, nan_ok=True), where
    assert table.nonfinite == expected.nonfinite, where
    assert table.total.count == expected.total.count, where
    assert table.total.histogram == expected.total.histogram, where


def plant_nonfinite(model: nn.Module) -> None:
    """Makes the first value of each shard NaN, infinite or zero; the same in all copies of a shard."""
    for value in model.parameters():
        if isinstance(value, DTensor) and value.to_local().numel():
            coordinates = zip(value.placements, value.device_mesh.get_coordinate() or (), strict=True)
            number = sum(number for placement, number in coordinates if not placement.is_replicate())
            with torch.no_grad():
                value.to_local()[(0,) * value.ndim] = (float("nan"), float("inf"), -float("inf"), 0.0)[number]


def measured(count: int) -> list[Any]:
    figures = []
    for name, model in sharded_models(count).items():
        plant_nonfinite(model)
        table = lw.stats(model)
        assert_same_rows(table, lw.stats(whole_state(model)), name)
        assert not table.skipped
        without = lw.stats(model, histogram=False)
        assert all(without[path].histogram is None for path in without)
        assert without.total.l2 == pytest.approx(table.total.l2)
        figures.append([(path, *map(repr, (table[path], table[path].mean, table[path].std))) for path in table])
        assert len(str(table)) > 100
    return figures


@COUNTS
def test_figures_are_those_of_the_whole_model_and_the_same_on_every_rank(count: int) -> None:
    results = run_ranks(count, measured, count)
    assert all(result == results[0] for result in results)
    assert any("NaN" in text for figures in results[0] for _, text, *_ in figures)


def measured_gradients() -> None:
    tokens = torch.arange(8).view(2, 4)
    plain, model = even(), fsdp(even(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")))
    message = said(lambda: lw.stats(model, of="grad"))
    assert "no leaf has a gradient" in message, message
    for net in (plain, model):
        net(tokens).square().sum().backward()
    table, expected = lw.stats(model, of="grad"), lw.stats(plain, of="grad")
    assert set(table) == set(expected)
    assert table.skipped == expected.skipped == {"scale": "it has no gradient"}
    for path in table:
        gathered = lw.stats({"w": full(dict(model.named_parameters())[path].grad)})["w"]
        assert [getattr(table[path], name) for name in EXACT] == [getattr(gathered, name) for name in EXACT]
        assert table[path].l2 == pytest.approx(expected[path].l2, rel=1e-4)


def test_gradients_are_measured_too() -> None:
    run_ranks(4, measured_gradients)


def said(action: Any) -> str:
    try:
        result = action()
    except lw.Error as error:
        return str(error)
    raise AssertionError(f"it was not refused: {result}")


def odd_dtypes() -> None:
    mesh = init_device_mesh("cpu", (2,))
    large = torch.tensor([[2**62 + 1, -(2**63)], [2**63 - 1, 0], [5, 7]])
    wholes = {
        "integers": large,
        "unsigned": large.to(torch.uint64),
        "bytes": torch.arange(12, dtype=torch.uint8).view(6, 2),
        "bools": torch.tensor([True, False, True]),
        "bfloat16": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
        "float8": torch.linspace(-300, 300, 9).to(torch.float8_e4m3fn),
        "columns": torch.arange(15.0).view(3, 5).t(),
        "one row": torch.ones(1, 4),
        "far from zero": torch.linspace(1e8, 1e8 + 1, 1000, dtype=torch.float64),
        "large": torch.full((4,), 1.5e308, dtype=torch.float64),
        "nothing": torch.zeros(0, 3),
        "number": torch.tensor(float("nan")),
    }
    # Splitting without sending works for all dtypes.
    state = {
        name: distribute_tensor(value, mesh, [Shard(0)], src_data_rank=None) if value.ndim else value
        for name, value in wholes.items()
    }
    assert_same_rows(lw.stats(state), lw.stats(wholes), "dtypes")
    pending = {**state, "pending": DTensor.from_local(torch.ones(3), mesh, [Partial()])}
    table = lw.stats(pending)
    assert list(table.skipped) == ["pending"]
    assert "Partial" in table.skipped["pending"]
    assert table.total.count == lw.stats(wholes).total.count
    assert "Partial" in said(lambda: lw.stats({"pending": pending["pending"]}))
    part = lw.stats(lw.tree(state).select("b*"))
    assert set(part) == {"bytes", "bools", "bfloat16"}
    with torch.device("meta"):
        empty = even()
    assert "meta tensor" in said(lambda: lw.stats(fsdp(empty, mesh)))


def test_all_dtypes_and_leaves_that_cannot_be_measured() -> None:
    run_ranks(2, odd_dtypes)


def many_nonfinite() -> None:
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.full((300, 100), float("nan"))
    whole[::2] = 1.0
    for axis in (0, 1):
        places = lw.stats({"w": distribute_tensor(whole, mesh, [Shard(axis)])}).nonfinite["w"]
        assert places == lw.stats({"w": whole}).nonfinite["w"]
        assert (len(places.indices), places.total) == (10_000, 15_000)


def test_the_first_places_of_nonfinite_values_are_those_of_the_whole() -> None:
    run_ranks(2, many_nonfinite)


def counted_collectives() -> int:
    """How many times ranks communicate for the statistics of a healthy model."""
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    with received_bytes() as received:
        lw.stats(model)
        sharded = len(received)
        lw.stats(Net())
        assert len(received) == sharded
    return sharded


def test_there_is_one_gather_of_results_and_one_of_a_digest() -> None:
    assert run_ranks(2, counted_collectives) == [2, 2]


def with_another_model(case: str) -> str:
    rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (2,))
    model = fsdp(Net(out=5) if case == "shape" and rank else Net(), mesh)
    if case == "value" and rank:
        model.head.bias.to_local().zero_()
    try:
        if case == "grad":
            lw.stats(model, of="grad" if rank else "value")
        else:
            lw.stats(lw.tree(model).select("**.up.*") if case == "part" and rank else model)
    except lw.RankError as error:
        return f"{error.rank} {error.path} {error}"
    return ""


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("shape", "1 scale lw.stats stopped at scale: rank 1 has 5 float32, but rank 0 has 3 float32; every rank"),
        ("part", "1 blocks.0.up.weight lw.stats stopped at blocks.0.up.weight: rank 1 has blocks.0.up.weight"),
        ("grad", '1  rank 1 calls lw.stats(…, of="grad"), but rank 0 calls lw.stats'),
    ],
)
def test_a_rank_with_another_model_is_named_on_every_rank(case: str, message: str) -> None:
    texts = run_ranks(2, with_another_model, case)
    assert texts[0] == texts[1]
    assert texts[0].startswith(message), texts[0]


def one_fails() -> str:
    from leafwise.homes.torch.values import measuring

    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    if distributed.get_rank():

        def failing(values: Any, histogram: bool) -> Any:
            raise MemoryError("not enough memory for a block of values")

        measuring._on_cpu = failing
    return said(lambda: lw.stats(model))


def test_a_rank_that_cannot_measure_is_an_error_on_every_rank() -> None:
    other, own = run_ranks(2, one_fails)
    assert other == "rank 1 failed: MemoryError: not enough memory for a block of values"
    assert own.startswith("cannot measure scale, embed.weight, ")


def one_dies() -> str:
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    lw.stats(model)
    if distributed.get_rank():
        os._exit(9)
    start = time.monotonic()
    message = said(lambda: lw.stats(model))
    assert time.monotonic() - start < 300  # instead of the 600 seconds that gloo waits
    return message


def test_a_rank_that_died_is_an_error_and_nobody_waits_for_it() -> None:
    message, nothing = run_ranks(2, one_dies, dies={1})
    assert message.startswith("cannot reach every one of the ranks 0, 1: ")
    assert nothing is None
