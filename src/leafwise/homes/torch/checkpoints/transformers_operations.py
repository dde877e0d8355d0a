"""The operations with which transformers converts stored arrays into those of a model, as recipes.

Each is recognized by its exact class. An operation that is not in the table, or that is used in a way that leafwise
does not know, is refused by name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import Any, NamedTuple

from leafwise.core.roles.recipes import (
    Recipe,
    RecipeError,
    Reshaped,
    Shape,
    axis_of,
    concatenated,
    cut,
    stacked,
    swapped,
)

Values = dict[str, "Recipe | list[Recipe]"]  # by pattern; a list until an operation has made one array of it


class Conversion(NamedTuple):
    """A converter of transformers that matched some stored arrays: its patterns, the full name of its first result, and
    what its operations may look up."""

    sources: list[str]
    targets: list[str]
    name: str
    config: Any
    wanted: Mapping[str, Shape | None]

    def shape_of(self, target: str) -> Shape:
        """The shape that the model has for one of the results."""
        shape = self.wanted.get(self.name.replace(self.targets[0], target))
        if shape is None:
            raise RecipeError(f"the model has no {self.name.replace(self.targets[0], target)}")
        return shape


def converted(operations: Sequence[Any], values: Values, conversion: Conversion) -> dict[str, Recipe]:
    """The results of a converter by their full names. Raises RecipeError if they cannot be described."""
    for operation in operations:
        cls = type(operation)
        apply = _OPERATIONS.get(cls.__name__) if cls.__module__ == "transformers.core_model_loading" else None
        if apply is None:
            raise RecipeError(f"leafwise does not know the operation {cls.__name__}")
        values = apply(operation, values, conversion)
    made = {pattern: _single(value) for pattern, value in values.items()}
    name = conversion.name.replace("*.", "0.")
    pattern = next((pattern for pattern in made if pattern in name), None)
    if pattern is None:
        raise RecipeError(f"the results {', '.join(made)} are not in the name {name}")
    before, _, after = name.partition(pattern)
    return {before + result + after: recipe for result, recipe in made.items()}


def _single(value: "Recipe | list[Recipe]") -> Recipe:
    if isinstance(value, Recipe):
        return value
    if len(value) != 1:
        raise RecipeError(f"{len(value)} arrays are stored where one is expected: {value[0].names()[0]}, …")
    return value[0]


def _only(values: Values) -> Recipe:
    if len(values) != 1:
        raise RecipeError(f"arrays for {len(values)} patterns are stored where one is expected")
    return _single(next(iter(values.values())))


def _target(values: Values, conversion: Conversion) -> str:
    """The key of the result of an operation on one array: the pattern of the source while a later operation splits
    it."""
    if len(values) != 1 or (len(conversion.targets) > 1 and len(conversion.sources) > 1):
        raise RecipeError("an operation for one array is applied to several")
    return conversion.sources[0] if len(conversion.targets) > 1 else conversion.targets[0]


def _chunk(operation: Any, values: Values, conversion: Conversion) -> Values:
    whole, targets = _only(values), conversion.targets
    attribute = operation.num_shards_attribute
    if attribute is not None:
        if len(targets) > 1:
            raise RecipeError("a chunk with a number of its own has several results")
        number = getattr(conversion.config.get_text_config(), attribute)
        targets = [targets[0].replace("*", str(part)) for part in range(number)]
    axis = axis_of(operation.dim, len(whole.shape))
    # As `torch.chunk` cuts: all parts are equal, except the last.
    size = whole.shape[axis]
    length = max(ceil(size / len(targets)), 1)
    sizes = [min(length, size - start) for start in range(0, size, length)]
    if len(sizes) != len(targets):
        raise RecipeError(f"axis {axis} of {whole.shape} cannot be split into {len(targets)} parts")
    return dict(zip(targets, cut(whole, axis, sizes), strict=True))


def _split(operation: Any, values: Values, conversion: Conversion) -> Values:
    whole = _only(values)
    axis = axis_of(operation.dim, len(whole.shape))
    sizes = [conversion.shape_of(target)[axis] for target in conversion.targets]
    return dict(zip(conversion.targets, cut(whole, axis, sizes), strict=True))


def _concatenate(operation: Any, values: Values, conversion: Conversion) -> Values:
    if len(conversion.targets) > 1 or not set(values) <= set(conversion.sources):
        raise RecipeError("arrays are concatenated that were not stored")
    parts: list[Recipe] = []
    for pattern in conversion.sources:
        if pattern not in values:
            raise RecipeError(f"nothing is stored for {pattern}")
        value = values[pattern]
        parts += value if isinstance(value, list) else [value]
    return {conversion.targets[0]: concatenated(parts, operation.dim)}


def _merge(operation: Any, values: Values, conversion: Conversion) -> Values:
    if len(values) == 1 and len(conversion.targets) > 1:
        raise RecipeError("one stacked array has several results")
    made: Values = {}
    for pattern, value in values.items():
        key = conversion.targets[0] if len(values) == 1 else pattern
        made[key] = stacked(value, operation.dim) if isinstance(value, list) else value
    return made


def _transpose(operation: Any, values: Values, conversion: Conversion) -> Values:
    target, whole = _target(values, conversion), _only(values)
    # With `check_dims`, the shape in the model says whether the array is stored transposed.
    if operation.check_dims and whole.shape == conversion.shape_of(conversion.targets[0]):
        return {target: whole}
    return {target: swapped(whole, operation.dim0, operation.dim1)}


def _interleave(operation: Any, values: Values, conversion: Conversion) -> Values:
    whole = _only(values)
    shape, axis = whole.shape, axis_of(operation.dim, len(whole.shape))
    interleaved = _interleaved(whole, shape[:axis], shape[axis] // 2, shape[axis + 1 :], operation.inverse)
    return {conversion.targets[0]: interleaved}


def _interleaved(whole: Recipe, before: Shape, half: int, after: Shape, inverse: bool) -> Recipe:
    """The two halves of an axis as pairs, or the pairs as halves; `before` and `after` are the axes around it."""
    pair = (2, half) if inverse else (half, 2)
    apart = Reshaped(whole, (*before, *pair, *after))
    return Reshaped(swapped(apart, len(before), len(before) + 1), whole.shape)


def _permute(operation: Any, values: Values, conversion: Conversion) -> Values:
    config = conversion.config
    if operation.subconfig_key is not None:
        config = getattr(config, operation.subconfig_key, config)
    heads = getattr(config, "num_attention_heads", 1)
    several = len(conversion.sources) > 1, len(conversion.targets) > 1
    if all(several):
        raise RecipeError("a permutation has several sources and several results")
    made: Values = {}
    for pattern, value in values.items():
        whole = _single(value)
        names = operation.permute_layer_names
        if names is None or any(name in pattern for name in names):
            whole = _by_heads(whole, heads, operation.inverse)
        made[pattern if any(several) else conversion.targets[0]] = whole
    return made


def _by_heads(whole: Recipe, heads: int, inverse: bool) -> Recipe:
    if len(whole.shape) not in (1, 2):
        return whole
    return _interleaved(whole, (heads,), whole.shape[0] // heads // 2, whole.shape[1:], inverse)


def _to_linear(operation: Any, values: Values, conversion: Conversion) -> Values:
    target, whole = _target(values, conversion), _only(values)
    if len(whole.shape) not in (2, 5):
        raise RecipeError(f"an array of shape {whole.shape} is not the weight of a convolution")
    return {target: whole if len(whole.shape) == 2 else Reshaped(whole, (whole.shape[0], prod(whole.shape[1:])))}


def _to_convolution(operation: Any, values: Values, conversion: Conversion) -> Values:
    target, whole = _target(values, conversion), _only(values)
    return {target: Reshaped(whole, (whole.shape[0], operation.in_channels, *operation.kernel_size))}


def _fuse_and_split_experts(operation: Any, values: Values, conversion: Conversion) -> Values:
    """Experts for two kinds of tokens in one list: its halves are stacked separately, and gate and up concatenated."""
    groups: dict[str, list[Recipe]] = {target: [] for target in conversion.targets}
    for pattern in conversion.sources:
        parts = values.get(pattern)
        if not isinstance(parts, list) or len(parts) % len(groups):
            raise RecipeError(f"the arrays for {pattern} cannot be divided by {len(groups)}")
        size = len(parts) // len(groups)
        for number, group in enumerate(groups.values()):
            group.append(stacked(parts[number * size : (number + 1) * size], operation.stack_dim))
    return {target: concatenated(group, operation.concat_dim) for target, group in groups.items()}


_OPERATIONS: dict[str, Callable[[Any, Values, Conversion], Values]] = {
    "Chunk": _chunk,
    "Concatenate": _concatenate,
    "Conv3dToLinear": _to_linear,
    "ErnieFuseAndSplitTextVisionExperts": _fuse_and_split_experts,
    "Interleave": _interleave,
    "LinearToConv3d": _to_convolution,
    "MergeModulelist": _merge,
    "PermuteForRope": _permute,
    "Split": _split,
    "Transpose": _transpose,
}


def check_numbers(names: Sequence[str]) -> None:
    """Raises unless names that one pattern collected differ only in a number that counts from 0: otherwise an array of
    the list is missing, and the others would get the wrong places."""
    if len(names) < 2:
        return
    texts = {tuple(re.split(r"\d+", name)) for name in names}
    numbers = zip(*(re.findall(r"\d+", name) for name in names), strict=False)
    counting = [column for column in numbers if len(set(column)) > 1]
    if (
        len(texts) > 1
        or len(counting) != 1
        or [number.lstrip("0") or "0" for number in counting[0]] != [str(number) for number in range(len(names))]
    ):
        raise RecipeError(f"the names {names[0]} … {names[-1]} do not count from 0 to {len(names) - 1}")
