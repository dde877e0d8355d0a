"""The operations of transformers as recipes: the same values as the operations themselves give."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from leafwise.core.roles.recipes import RecipeError, Taken, folded
from leafwise.files.arrays.assembled import Assembled
from leafwise.files.arrays.live import Copied
from leafwise.homes.torch.checkpoints import transformers_layouts
from leafwise.homes.torch.checkpoints.transformers_operations import Conversion, check_numbers, converted

CONFIG = SimpleNamespace(num_attention_heads=2, vision_config=SimpleNamespace(num_attention_heads=4), shards=3)
CONFIG.get_text_config = lambda: CONFIG


@pytest.fixture(scope="module")
def loading() -> Any:
    from transformers import core_model_loading

    return core_model_loading


class Model(torch.nn.Module):
    """What operations look up in a model: parameters by name."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._shapes = shapes

    def get_parameter(self, target: str) -> Any:
        return torch.empty(self._shapes[target])


def experts(*shape: int, count: int = 4) -> list[tuple[int, ...]]:
    return [shape] * count


# Patterns of the source with the shapes that are stored for each, patterns of the results, and operations; then the
# shapes in the model, if an operation looks at them. Operations are made when a test runs, because importing
# transformers takes seconds.
CASES: dict[str, Any] = {
    "chunk": ({"qkv": [(12, 5)]}, ["q", "k", "v"], lambda loading: [loading.Chunk(0)]),
    "chunk, last part smaller": ({"ab": [(3, 7)]}, ["a", "b"], lambda loading: [loading.Chunk(1)]),
    "chunk, number in the config": ({"all": [(6, 2)]}, ["part_*"], lambda loading: [loading.Chunk(0, "shards")]),
    "concatenate": ({"q": [(4, 5)], "k": [(2, 5)], "v": [(3, 5)]}, ["qkv"], lambda loading: [loading.Concatenate(0)]),
    "concatenate, last axis": ({"a": [(4, 2)], "b": [(4, 3)]}, ["ab"], lambda loading: [loading.Concatenate(-1)]),
    "experts": ({"e.*.w2": experts(3, 5)}, ["down"], lambda loading: [loading.MergeModulelist(0)]),
    "experts, last axis": ({"e.*.w2": experts(3, 5)}, ["down"], lambda loading: [loading.MergeModulelist(-1)]),
    "gate and up": (
        {"e.*.w1": experts(3, 5), "e.*.w3": experts(3, 5)},
        ["gate_up"],
        lambda loading: [loading.MergeModulelist(0), loading.Concatenate(1)],
    ),
    "experts, transposed": (
        {"e.*.w2": experts(3, 5)},
        ["down"],
        lambda loading: [loading.MergeModulelist(0), loading.Transpose(1, 2)],
    ),
    "one expert": ({"e.*.w2": experts(3, 5, count=1)}, ["down"], lambda loading: [loading.MergeModulelist(0)]),
    "transpose": ({"w": [(4, 3, 2)]}, ["kernel"], lambda loading: [loading.Transpose(0, 2)]),
    "transpose and chunk": (
        {"w": [(4, 6)]},
        ["a", "b", "c"],
        lambda loading: [loading.Transpose(0, 1), loading.Chunk(0)],
    ),
    "transpose, if the shape differs": (
        {"w": [(4, 3, 2)]},
        ["w"],
        lambda loading: [loading.Transpose(1, 2, check_dims=True)],
        {"w": (4, 2, 3)},
    ),
    "transpose, not if the shape is right": (
        {"w": [(4, 3, 2)]},
        ["w"],
        lambda loading: [loading.Transpose(1, 2, check_dims=True)],
        {"w": (4, 3, 2)},
    ),
    "split": (
        {"qkv": [(9, 2)]},
        ["q", "k", "v"],
        lambda loading: [loading.Split(0)],
        {"q": (4, 2), "k": (2, 2), "v": (3, 2)},
    ),
    "interleave": ({"w13": [(8, 3)]}, ["gate_up"], lambda loading: [loading.Interleave(0)]),
    "interleave, inverse": ({"w13": [(2, 8)]}, ["gate_up"], lambda loading: [loading.Interleave(1, inverse=True)]),
    "interleave and chunk": (
        {"w13": [(3, 8, 2)]},
        ["gate", "up"],
        lambda loading: [loading.Interleave(1), loading.Chunk(1)],
    ),
    "permute": ({"q": [(8, 3)]}, ["q_proj"], lambda loading: [loading.PermuteForRope()]),
    "permute, bias": ({"q": [(8,)]}, ["q_proj"], lambda loading: [loading.PermuteForRope(inverse=True)]),
    "permute, vision": ({"q": [(16, 3)]}, ["q_proj"], lambda loading: [loading.PermuteForRope("vision_config")]),
    "chunk, permute some": (
        {"qkv": [(24, 3)]},
        ["q_proj", "k_proj", "v_proj"],
        lambda loading: [loading.Chunk(0), loading.PermuteForRope(permute_layer_names=["q_proj", "k_proj"])],
    ),
    "permute some, concatenate": (
        {"q_proj": [(8, 3)], "v_proj": [(8, 3)]},
        ["qv"],
        lambda loading: [loading.PermuteForRope(permute_layer_names=["q_proj"]), loading.Concatenate(0)],
    ),
    "convolution to linear": (
        {"conv": [(4, 3, 2, 2, 2)]},
        ["linear"],
        lambda loading: [loading.Conv3dToLinear(3, (2, 2, 2))],
    ),
    "linear to convolution": ({"linear": [(4, 24)]}, ["conv"], lambda loading: [loading.LinearToConv3d(3, (2, 2, 2))]),
    "experts of two kinds": (
        {"e.*.gate": experts(3, 5, count=6), "e.*.up": experts(3, 5, count=6)},
        ["text", "vision"],
        lambda loading: [loading.ErnieFuseAndSplitTextVisionExperts(0, 1)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_gives_the_values_of_the_operations(case: str, loading: Any) -> None:
    sources, targets, operations_of, *looked_up = CASES[case]
    operations = operations_of(loading)
    shapes = {f"m.{name}.x": shape for name, shape in (looked_up[0] if looked_up else {}).items()}
    generator = torch.Generator().manual_seed(1)
    tensors = {
        pattern: [torch.randn(shape, generator=generator) for shape in given] for pattern, given in sources.items()
    }
    name = f"m.{targets[0]}.x"
    converter = loading.WeightConverter(list(sources), list(targets), operations)
    for pattern, values in tensors.items():
        for number, value in enumerate(values):
            converter.add_tensor(name, f"{pattern}{number}", pattern, value)
    truth = converter.convert(name.replace("*", "0"), model=Model(shapes), config=CONFIG)

    inputs = {
        f"{pattern} {number}": value for pattern, values in tensors.items() for number, value in enumerate(values)
    }
    recipes: Any = {
        pattern: [Taken(f"{pattern} {number}", tuple(value.shape)) for number, value in enumerate(values)]
        for pattern, values in tensors.items()
    }
    conversion = Conversion(list(sources), list(targets), name.replace("*", "0"), CONFIG, shapes)
    made = converted(operations, recipes, conversion)
    assert made.keys() == truth.keys()
    for result, recipe in made.items():
        value = truth[result][0] if isinstance(truth[result], list) else truth[result]
        arrays = {used: live(inputs[used]) for used in recipe.names()}
        array = Assembled(recipe, arrays)
        assert array.spec.shape == tuple(value.shape)
        assert torch.equal(torch.from_numpy(array.read().copy()), value), result
        assert torch.equal(torch.from_numpy(array.read((..., slice(1))).copy()), value[..., :1])


def live(value: torch.Tensor) -> Copied:
    return Copied(value.numpy())


def test_every_operation_of_the_installed_transformers_is_tested_or_refused(loading: Any) -> None:
    tested = {type(operation) for _, _, operations_of, *_ in CASES.values() for operation in operations_of(loading)}
    known = {cls for cls in vars(loading).values() if isinstance(cls, type) and issubclass(cls, loading.ConversionOps)}
    for cls in known - tested - {loading.ConversionOps}:
        operation = cls.__new__(cls)
        with pytest.raises(RecipeError, match=f"leafwise does not know the operation {cls.__name__}"):
            converted([operation], {"a": [Taken("a", (2, 2))]}, Conversion(["a"], ["b"], "b", CONFIG, {}))


def test_a_subclass_of_a_known_operation_is_refused(loading: Any) -> None:
    class Chunk(loading.Chunk):  # type: ignore[misc, name-defined]
        pass

    with pytest.raises(RecipeError, match="does not know the operation Chunk"):
        converted([Chunk(0)], {"a": [Taken("a", (2, 2))]}, Conversion(["a"], ["b", "c"], "b", CONFIG, {}))


@pytest.mark.parametrize("names", [["e.0.w", "e.2.w"], ["e.1.w", "e.2.w"], ["e.0.w", "f.1.w"], ["e.0.w", "e.00.w"]])
def test_names_that_do_not_count_are_refused(names: list[str]) -> None:
    with pytest.raises(RecipeError):
        check_numbers(names)


def test_names_that_count_are_accepted() -> None:
    check_numbers(["layers.3.e.0.w1", "layers.3.e.1.w1", "layers.3.e.2.w1"])
    check_numbers(["shard_0", "shard_1"])
    check_numbers(["shard_00", "shard_01"])


def test_numbers_with_many_digits_are_refused_not_parsed() -> None:
    names = ["e.0.w", f"e.{'9' * 5000}.w"]
    with pytest.raises(RecipeError):
        check_numbers(names)
    assert folded(names).startswith("e.{0,999")
    assert transformers_layouts.natural_key(names[1]) > transformers_layouts.natural_key(names[0])


def test_parts_that_are_not_stored_are_refused(loading: Any) -> None:
    conversion = Conversion(["a", "b"], ["ab"], "ab", CONFIG, {})
    with pytest.raises(RecipeError, match="nothing is stored for b"):
        converted([loading.Concatenate(0)], {"a": [Taken("a", (2, 2))]}, conversion)
    values: Any = {"a": [Taken("a", (2, 2))], "b": [Taken("b", (2, 3))]}
    with pytest.raises(RecipeError, match="cannot be concatenated"):
        converted([loading.Concatenate(0)], values, conversion)
