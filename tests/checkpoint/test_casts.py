"""Save, convert and load cast by the same rules, and values are right even if source and target share memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.models import buffers
from torch import nn

import leafwise as lw
from leafwise.cli import main
from leafwise.kernels.casting import cast_to

# A value, and a dtype that it does not fit into.
MISFITS = [
    (70000.0, "float16"), (-1e300, "float32"), (3.4e38, "bfloat16"), (float("inf"), "float8_e4m3fn"),
    (465.0, "float8_e4m3fn"), (-1e30, "float8_e8m0fnu"), (0.0, "float8_e8m0fnu"), (1e5, "float8_e5m2"),
    (float("-inf"), "float8_e5m2fnuz"), (250.0, "float8_e4m3fnuz"),
]  # fmt: skip
DTYPES = sorted({dtype for _, dtype in MISFITS})


def values(value: float) -> torch.Tensor:
    return torch.tensor([1.0, 2.0, value, 4.0], dtype=torch.float64)


def held(path: Any, name: str) -> Any:
    with lw.open(path) as t:
        return t[name].numpy().copy()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SOURCES: dict[str, Callable[[torch.Tensor, Path], Any]] = {
    "torch": lambda tensor, _: {"fine": torch.ones(3), "deep": {"bad": tensor}},
    "strided": lambda tensor, _: {"fine": torch.ones(3), "deep": {"bad": torch.stack([tensor, tensor]).T}},
    "numpy": lambda tensor, _: {"fine": np.ones(3), "deep": {"bad": tensor.numpy()}},
    "big-endian": lambda tensor, _: {"fine": np.ones(3), "deep": {"bad": tensor.numpy().astype(">f8")}},
    "file": lambda tensor, folder: lw.open(lw.save({"deep": {"bad": tensor}}, folder / "source.safetensors")),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("value", "dtype"), MISFITS)
def test_a_save_refuses_what_does_not_fit_and_leaves_the_old_file(
    value: float, dtype: str, source: str, tmp_path: Path
) -> None:
    obj = SOURCES[source](values(value), tmp_path)
    path = lw.save({"old": torch.ones(2)}, tmp_path / "out.safetensors")
    before = contents(tmp_path)
    for more in ({}, {"background": True}, {"shard_size": 16}):
        with pytest.raises(lw.WalkError, match=rf"cannot save deep\.bad: .* into {dtype}.*cast=\"saturate\""):
            getattr(lw.save(obj, path, dtype=dtype, **more), "wait", lambda: None)()
        assert contents(tmp_path) == before
    lw.save(obj, path, dtype=dtype, cast="saturate")
    found = held(path, "deep.bad").astype(np.float64)
    reference = cast_to(values(value).numpy(), dtype, saturate=True).astype(np.float64)
    assert np.array_equal(found.reshape(4, -1)[:, 0], reference)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize(("value", "dtype"), MISFITS)
def test_convert_refuses_what_does_not_fit_and_leaves_the_old_file(
    value: float, dtype: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (suffix == ".npz" and "8" in dtype) or dtype == "bfloat16":
        suffix = ".safetensors"
    source = lw.save({"fine": torch.ones(3), "deep": {"bad": values(value)}}, tmp_path / "a.safetensors")
    out = tmp_path / f"out{suffix}"
    out.write_bytes(b"old")
    before = contents(tmp_path)
    assert main(["convert", source, str(out), "--dtype", dtype]) == 1
    said = capsys.readouterr().err
    assert "deep.bad" in said
    assert f"into {dtype}" in said
    assert "--cast saturate" in said
    assert contents(tmp_path) == before
    assert main(["convert", source, str(out), "--dtype", dtype, "--cast", "saturate"]) == 0
    found = held(out, "deep.bad")
    assert found.tobytes() == cast_to(values(value).numpy(), dtype, saturate=True).tobytes()


@pytest.mark.parametrize("dtype", ["int8", "bool", "uint64", "complex64"])
def test_a_dtype_without_a_fraction_cannot_be_cast_to(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lw.save({"a": torch.tensor([0.5, 300.0, float("nan")])}, tmp_path / "a.safetensors")
    assert main(["convert", source, str(tmp_path / "b.safetensors"), "--dtype", dtype]) == 1
    assert "cannot cast to" in capsys.readouterr().err
    with pytest.raises(lw.QueryError, match=r"cannot cast to"):
        lw.save({"a": torch.ones(1)}, tmp_path / "b.safetensors", dtype=dtype)
    assert not (tmp_path / "b.safetensors").exists()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("value", "dtype"), MISFITS)
def test_a_load_refuses_what_does_not_fit_and_changes_nothing(
    value: float, dtype: str, source: str, tmp_path: Path
) -> None:
    obj = SOURCES[source](values(value), tmp_path)
    t = lw.tree(obj)
    target: Any = {"deep": {"bad": torch.ones(t["deep.bad"].shape, dtype=getattr(torch, dtype))}}
    if source != "file":
        target = {"fine": torch.zeros(3, dtype=getattr(torch, t["fine"].dtype)), **target}
    before = [leaf.numpy().tobytes() for leaf in lw.tree(target)]
    with pytest.raises(lw.LoadError, match=rf"cannot load deep\.bad: .* into {dtype}.*nothing was changed"):
        lw.load(target, obj, cast=True)
    assert [leaf.numpy().tobytes() for leaf in lw.tree(target)] == before
    lw.load(target, obj, cast="saturate")
    found = lw.tree(target)["deep.bad"].numpy().astype(np.float64).reshape(4, -1)[:, 0]
    assert np.array_equal(found, cast_to(values(value).numpy(), dtype, saturate=True).astype(np.float64))


def test_values_that_do_not_fit_are_not_cast() -> None:
    for target, source in (
        (torch.zeros(2, dtype=torch.uint8), torch.tensor([300, -1])),
        (torch.zeros(2, dtype=torch.float16), torch.tensor([1e6, 1.0])),
    ):
        with pytest.raises(lw.LoadError, match=r"do not fit into"):
            lw.load({"a": target}, {"a": source}, cast=True)
        assert not target.any()
    assert lw.load({"a": torch.zeros(2).half()}, {"a": torch.tensor([0.1, float("inf")])}, cast=True)["a"][0] == 0.1


@pytest.mark.parametrize("dtype", ["float64", *DTYPES])
def test_save_convert_and_load_give_the_same_bits(dtype: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(3000, generator=generator, dtype=torch.float64).abs() * 50 + 1e-3
    wide[:3] = torch.tensor([1 + 2**-8 + 2**-40, 2049 * 2**-5 + 2**-30, 1.0625 + 2**-33])  # where two roundings differ
    for tensor in (wide, wide.float(), wide.half(), wide.bfloat16()):
        obj = {"a": tensor}
        saved = lw.save(obj, tmp_path / "a.safetensors", dtype=dtype)
        plain = lw.save(obj, tmp_path / "b.safetensors")
        assert main(["convert", plain, str(tmp_path / "c.safetensors"), "--dtype", dtype]) == 0
        target = lw.load({"a": torch.ones(3000, dtype=getattr(torch, dtype))}, plain, cast=True)
        bits = lw.tree(target)["a"].numpy().tobytes()
        assert held(saved, "a").tobytes() == held(tmp_path / "c.safetensors", "a").tobytes() == bits
        if tensor.dtype != getattr(torch, dtype):
            assert lw.diff(obj, saved)["a"].kinds == ("cast",)


def test_the_imaginary_part_counts() -> None:
    target = {"a": torch.ones(1, dtype=torch.complex64)}
    for value in (complex(0, 1e300), complex(-1e300, 0)):
        source = {"a": torch.tensor([value], dtype=torch.complex128)}
        with pytest.raises(lw.LoadError, match="do not fit into float32"):
            lw.load(target, source, cast=True)
        assert target["a"][0] == 1
    assert torch.isfinite(lw.load(target, source, cast="saturate")["a"]).all()
    with pytest.raises(lw.LoadError, match="leafwise does not cast one kind of number to another"):
        lw.load({"a": torch.ones(1)}, source, cast="saturate")


def test_whole_numbers_saturate() -> None:
    source = {"a": torch.tensor([-(2**63), 300, 7]), "b": np.array([2**64 - 1], np.uint64)}
    target = {"a": torch.zeros(3, dtype=torch.uint8), "b": np.zeros(1, np.int64)}
    with pytest.raises(lw.LoadError, match="cannot load a: some values do not fit into uint8"):
        lw.load(target, source, cast=True)
    lw.load(target, source, cast="saturate")
    assert target["a"].tolist() == [0, 255, 7]
    assert target["b"].tolist() == [2**63 - 1]


def test_a_cast_option_that_is_not_known_is_an_error(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for wrong in ("saturated", 1, None, "", ["saturate"], np.array([1, 2])):
        with pytest.raises(lw.QueryError, match=r"cast="):
            lw.load(model, {"weight": model.weight, "bias": model.bias}, cast=wrong)
        with pytest.raises(lw.QueryError, match=r"cast="):
            lw.save(model, tmp_path / "a.safetensors", dtype="float16", cast=wrong)
    for more in ({"cast": "saturate"}, {"dtype": "float16", "cast": False}):
        with pytest.raises(lw.QueryError, match=r"cast="):
            lw.save(model, tmp_path / "a.safetensors", **more)
    assert lw.plan(model, {"weight": model.weight.half(), "bias": model.bias}, cast="saturate").holds
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("numbers", [[1e30, 1.0], [0.5, float("-1e300")], [70000, 1]])
def test_python_numbers_that_do_not_fit_are_not_written(numbers: list[float]) -> None:
    for array in (torch.ones(2, dtype=torch.float16), np.ones(2, np.float16)):
        with pytest.raises(lw.WriteError, match=r"cannot write|do not fit into float16"):
            lw.tree({"a": array})["a"].write(numbers)
        assert array.tolist() == [1, 1]


def test_python_numbers_keep_all_their_digits() -> None:
    for array in (torch.ones(2, dtype=torch.float64), np.ones(2)):
        lw.tree({"a": array})["a"].write([0.1, 1e300])
        assert array.tolist() == [0.1, 1e300]


# -- shared memory -------------------------------------------------------------------------------------------------


def over_itself() -> list[tuple[Any, Any]]:
    """3×3 arrays whose elements overlap in memory, and a view of all of that memory."""
    base = torch.zeros(5)
    array = np.zeros(5, np.float32)
    windows = np.lib.stride_tricks.as_strided(array, (3, 3), (4, 4))
    broadcast = np.lib.stride_tricks.as_strided(array, (3, 3), (0, 4))
    return [(base.as_strided((3, 3), (1, 1)), base), (windows, array), (broadcast, array)]


@pytest.mark.parametrize("number", range(3))
def test_a_target_whose_elements_share_memory_needs_equal_values_for_them(number: int) -> None:
    target, memory = over_itself()[number]
    different = torch.arange(9.0).reshape(3, 3)
    with pytest.raises(lw.LoadError, match=r"cannot load w: several of its elements share memory.*nothing was"):
        lw.load({"w": target}, {"w": different})
    assert not memory.any()
    fitting = torch.arange(3.0).expand(3, 3) if number == 2 else torch.arange(5.0).as_strided((3, 3), (1, 1))
    lw.load({"w": target}, {"w": fitting.contiguous()})
    assert np.array_equal(np.asarray(target), fitting.numpy())


def test_overlaps_are_found_among_leaves_of_several_homes_that_are_cast() -> None:
    """The leaves of a home are handled together, in another order than that of the model."""
    base = torch.zeros(6)
    target: dict[str, Any] = {
        "a": np.zeros(3, np.float32), "b": base[:4], "c": np.zeros(5, np.float64), "d": base[2:], "e": torch.zeros(2)
    }  # fmt: skip
    source = {name: np.full(len(value), number, np.float64) for number, (name, value) in enumerate(target.items())}
    with pytest.raises(lw.LoadError, match=r"cannot load b, d: they overlap in memory"):
        lw.load(target, source, cast=True)
    assert not any(np.asarray(value).any() for value in target.values())
    source["d"] = source["b"]
    lw.load(target, source, cast=True)
    assert {name: float(value[0]) for name, value in target.items()} == {"a": 0, "b": 1, "c": 2, "d": 1, "e": 4}


def test_strides_that_interleave_do_not_overlap() -> None:
    base = torch.zeros(8)
    target = base.as_strided((2, 3), (3, 2))  # 0 2 4, 3 5 7
    lw.load({"w": target}, {"w": torch.arange(6.0).reshape(2, 3)})
    assert base.tolist() == [0, 0, 1, 3, 2, 4, 0, 5]


def test_columns_of_one_matrix_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(found: Any) -> bool:
        raise AssertionError("their values were compared")

    monkeypatch.setattr("leafwise.checkpoint.loading.agreement.agree_in_memory", never)
    base = torch.zeros(4, 6)
    target = {str(number): base[:, number::3] for number in range(3)}
    lw.load(target, {str(number): torch.full((4, 2), float(number)) for number in range(3)})
    assert base[0].tolist() == [0, 1, 2, 0, 1, 2]


def test_leaves_of_two_homes_that_share_memory_need_equal_values() -> None:
    array = np.zeros(6, np.float32)
    target = {"a": torch.from_numpy(array[:4]), "b": array[2:]}
    with pytest.raises(lw.LoadError, match=r"cannot load a, b: they overlap in memory.*nothing was changed"):
        lw.load(target, {"a": torch.ones(4), "b": torch.zeros(4)})
    assert not array.any()
    lw.load(target, {"a": torch.tensor([1.0, 2, 3, 4]), "b": torch.tensor([3.0, 4, 5, 6])})
    assert array.tolist() == [1, 2, 3, 4, 5, 6]


def test_leaves_that_share_memory_need_equal_values_in_two_files(tmp_path: Path) -> None:
    base = torch.zeros(6)
    target = {"x": {"a": base[:4]}, "y": {"b": base[2:]}}
    files = {
        "x": lw.save({"a": torch.ones(4)}, tmp_path / "x.safetensors"),
        "y": lw.save({"b": torch.full((4,), 2.0)}, tmp_path / "y.safetensors"),
    }
    with pytest.raises(lw.LoadError, match=r"they overlap in memory.*nothing was changed"):
        lw.load(target, files)
    assert not base.any()


def test_a_leaf_and_its_conjugate_are_not_one_value() -> None:
    base = torch.zeros(2, dtype=torch.complex64)
    same = torch.full((2,), 1 + 2j, dtype=torch.complex64)
    with pytest.raises(lw.LoadError, match=r"they overlap in memory.*nothing was changed"):
        lw.load({"a": base, "b": base.conj()}, {"a": same, "b": same.clone()}, ties="ignore")
    assert not base.any()


def shared() -> list[tuple[str, Any, Any]]:
    """Targets, and sources that share their memory but see it differently."""
    found: list[tuple[str, Any, Any]] = []
    base = torch.arange(12.0)
    found.append(("shifted", {"w": base[:8]}, {"w": base[4:]}))
    base = torch.arange(9.0).reshape(3, 3)
    found.append(("transposed", {"w": base}, {"w": base.T}))
    base = torch.arange(12.0)
    found.append(("seen by NumPy", {"w": base[4:]}, {"w": base.numpy()[:8]}))
    array = np.arange(12.0)
    found.append(("seen by torch", {"w": array[1:]}, {"w": torch.from_numpy(array)[:11]}))
    array = np.arange(12.0)
    seen = torch.from_numpy(array)
    found.append(("through two arrays", {"w": seen.numpy()[1:]}, {"w": seen.numpy()[:11]}))
    room = bytearray(np.arange(10.0).tobytes())
    found.append(("of one buffer", {"w": np.frombuffer(room)[1:]}, {"w": np.frombuffer(room)[:9]}))
    base = torch.arange(8.0)
    found.append(("swapped", {"a": base[:4], "b": base[4:]}, {"a": base[4:], "b": base[:4]}))
    base = torch.arange(8.0)
    found.append(("swapped, in NumPy", {"a": base[:4], "b": base[4:]}, {"a": base.numpy()[4:], "b": base.numpy()[:4]}))
    base = torch.arange(4.0).double()
    found.append(("cast", {"w": base.view(torch.float32)[2:6]}, {"w": base}))
    return found


@pytest.mark.parametrize("number", range(len(shared())), ids=[name for name, _, _ in shared()])
def test_a_source_in_the_memory_of_the_target_is_read_before_it_is_written(number: int) -> None:
    _, target, source = shared()[number]
    wanted = {name: np.asarray(value).copy() for name, value in source.items()}
    lw.load(target, source, cast=True)
    for name, value in wanted.items():
        assert np.array_equal(np.asarray(target[name]), value), name


def test_the_weights_of_one_model_can_be_swapped_by_a_rename() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    first, second = net[0].weight.detach().clone(), net[1].weight.detach().clone()
    lw.load(net, net, rename={"0": "1", "1": "0"})
    assert torch.equal(net[0].weight, second)
    assert torch.equal(net[1].weight, first)


def test_overlapping_targets_need_equal_values() -> None:
    source = buffers(a=torch.ones(6), b=torch.full((6,), 2.0))
    memory = torch.zeros(10)
    with pytest.raises(lw.LoadError, match=r"cannot load a, b: they overlap in memory"):
        lw.load(buffers(a=memory[:6], b=memory[4:]), source)
    assert not memory.any()
    lw.load(buffers(a=memory[:6], b=memory[4:]), buffers(a=torch.ones(6), b=torch.ones(6)))
    assert memory.all()


class Windows(nn.Module):
    """A buffer, and a view that no index can express: one of its rows, twice."""

    def __init__(self, shared: bool, start: float) -> None:
        super().__init__()
        base = torch.arange(start, start + 4.0).reshape(2, 2)
        self.register_buffer("base", base)
        self.register_buffer("rows", base.as_strided((2, 2), (0, 1)) if shared else torch.zeros(2, 2))


def test_a_view_that_no_index_can_express_is_not_mistaken_for_the_whole() -> None:
    source = Windows(True, 1)
    target = lw.load(Windows(False, 0), source)
    assert target.base.tolist() == [[1, 2], [3, 4]]
    assert target.rows.tolist() == [[1, 2], [1, 2]]
    # In the target, the values of both names must be equal.
    target = lw.load(Windows(True, 0), source)
    assert target.rows.tolist() == [[1, 2], [1, 2]]
    for rows in ([[1.0, 2], [3, 4]], [[3.0, 4], [3, 4]]):
        target = Windows(True, 7)
        with pytest.raises(lw.LoadError, match="two different values"):
            lw.load(target, {"base": source.base, "rows": torch.tensor(rows)})
        assert target.base.tolist() == [[7, 8], [9, 10]]


def test_any_views_of_one_memory_are_loaded_right_or_refused() -> None:
    rng = np.random.default_rng(5)
    loaded = refused = 0
    for _ in range(400):
        room = np.arange(24, dtype=np.float32)

        def view(shape: tuple[int, ...], memory: Any = room) -> Any:
            """A view of the memory with any strides, of NumPy or of PyTorch."""
            while True:
                strides = [int(rng.integers(0, 6)) for _ in shape]
                ends = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
                if ends < memory.size:
                    break
            start = int(rng.integers(0, memory.size - ends))
            if rng.random() < 0.5:
                return torch.from_numpy(memory).as_strided(shape, strides, start)
            bytes_apart = [4 * stride for stride in strides]
            return np.lib.stride_tricks.as_strided(memory[start:], shape, bytes_apart)

        shapes = {name: tuple(int(size) for size in rng.integers(1, 4, 2)) for name in ("a", "b")[: rng.integers(1, 3)]}
        target = {name: view(shape) for name, shape in shapes.items()}
        source = {name: view(shape) for name, shape in shapes.items()}
        wanted = {name: np.asarray(value).copy() for name, value in source.items()}
        before = room.copy()
        try:
            lw.load(target, source, ties="ignore")
        except lw.LoadError:
            assert np.array_equal(room, before)
            refused += 1
        else:
            assert all(np.array_equal(np.asarray(target[name]), value) for name, value in wanted.items())
            loaded += 1
    assert loaded > 50
    assert refused > 50
