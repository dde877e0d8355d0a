"""How transformers stores its models: its own description of names and layouts, applied to a checkpoint.

transformers describes what `from_pretrained` changes: names, and arrays that are fused, split or transposed. That
description is used here, not copied. Versions of transformers that have none store the names of the model.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leafwise.core.capabilities.converting import Reading
from leafwise.core.roles.recipes import Recipe, RecipeError, Shape, Taken
from leafwise.homes.torch.checkpoints.transformers_operations import Conversion, check_numbers, converted

LIBRARY = "transformers"
_LOADING = "transformers.core_model_loading"
Shapes = Mapping[str, Shape | None]


def readings(model: Any, stored: Shapes, wanted: Shapes) -> list[Reading]:
    """The ways to read a checkpoint into a model: of the base model, or as transformers stores it."""
    prefix = getattr(model, "base_model_prefix", "") or ""
    found = []
    if prefix:
        names = {name: _with_prefix(name, prefix, wanted) for name in stored}
        found.append(Reading(LIBRARY, _unique(names, stored, wanted)))
    transforms = _transforms(model)
    if transforms:
        found.append(_Mapping(model, transforms, prefix).reading(stored, wanted))
        # `save_pretrained` stores a model that was built, not loaded, without these prefixes.
        kind = getattr(import_module(_LOADING), "PrefixChange", ())
        kept = [one for one in _transforms(model) if not isinstance(one, kind)]
        if len(kept) < len(transforms):
            found.append(_Mapping(model, kept, prefix).reading(stored, wanted))
    return found


def _transforms(model: Any) -> list[Any]:
    """What transformers changes when it loads a checkpoint into this model, in order."""
    if getattr(model, "hf_quantizer", None) is not None:
        return []  # a quantizer changes the conversions while it loads
    try:
        return list(import_module("transformers.conversion_mapping").get_model_conversion_mapping(model))
    except Exception:
        return []  # an older version without this description, or a model that it does not describe


def _with_prefix(name: str, prefix: str, wanted: Shapes) -> str:
    """A name with the prefix of the base model added or removed, if the model has that name."""
    if name in wanted:
        return name
    inner = name.removeprefix(f"{prefix}.")
    if inner != name and inner in wanted:
        return inner
    outer = f"{prefix}.{name}"
    return outer if outer in wanted else name


def _unique(names: Mapping[str, str], stored: Shapes, wanted: Shapes) -> dict[str, Recipe]:
    """Recipes for names that stay one array, by their new names. If two stored names would become one, the stored name
    that equals it wins; if there is none, neither is used."""
    sources: dict[str, list[str]] = {}
    for name, new in names.items():
        if new in wanted:
            sources.setdefault(new, []).append(name)
    chosen = {
        new: new if new in among else among[0] for new, among in sources.items() if new in among or len(among) == 1
    }
    return {new: Taken(name, shape) for new, name in chosen.items() if (shape := stored[name]) is not None}


class _Mapping:
    """The transforms of one model."""

    def __init__(self, model: Any, transforms: list[Any], prefix: str) -> None:
        loading: Any = import_module(_LOADING)
        self._config, self._prefix = getattr(model, "config", None), prefix
        self._renamings = [one for one in transforms if isinstance(one, loading.WeightRenaming)]
        self._converters = [one for one in transforms if isinstance(one, loading.WeightConverter)]
        known = (loading.WeightRenaming, loading.WeightConverter)
        self._unknown = {type(one).__name__ for one in transforms if not isinstance(one, known)}

    def reading(self, stored: Shapes, wanted: Shapes) -> Reading:
        names: dict[str, str] = {}  # names that stay one array
        collected: dict[tuple[str, int], dict[str, list[str]]] = {}  # by first result and converter
        # Sorted, because some renamings depend on an earlier name, and experts are stacked in this order.
        for name in sorted(stored, key=natural_key):
            new, number, pattern = self._renamed(name)
            new = _with_prefix(new, self._prefix, wanted)
            if new not in wanted and _with_prefix(name, self._prefix, wanted) in wanted:
                new, number = _with_prefix(name, self._prefix, wanted), None
            if number is None:
                names[name] = new
            else:
                collected.setdefault((new, number), {}).setdefault(pattern, []).append(name)
        recipes = _unique(names, stored, wanted)
        refused = dict.fromkeys(stored, f"leafwise does not know {', '.join(self._unknown)}") if self._unknown else {}
        for (new, number), inputs in collected.items():
            if new not in wanted:
                continue
            try:
                made = self._converted(new, number, inputs, stored, wanted)
            except Exception as error:  # a RecipeError, or what a config lacks that an operation needs
                first = next(iter(inputs.values()))[0]
                reason = error if isinstance(error, RecipeError) else f"this raised {type(error).__name__}: {error}"
                refused[first] = f"transformers converts it to {new}, and {reason}"
                continue
            if made.keys() <= wanted.keys() and not made.keys() & recipes.keys():
                recipes |= made
        return Reading(LIBRARY, recipes, refused=refused)

    def _renamed(self, name: str) -> tuple[str, int | None, str]:
        """The new name; if arrays are also converted, by which converter, and the pattern that matched."""
        for renaming in self._renamings:
            name = renaming.rename_source_key(name)[0]
        for number, converter in enumerate(self._converters):
            name, pattern = converter.rename_source_key(name)
            if pattern is not None:
                return name, number, pattern
        return name, None, ""

    def _converted(
        self, new: str, number: int, inputs: dict[str, list[str]], stored: Shapes, wanted: Shapes
    ) -> dict[str, Recipe]:
        converter = self._converters[number]
        values: dict[str, Recipe | list[Recipe]] = {}
        for pattern, names in inputs.items():
            check_numbers(names)
            values[pattern] = [_taken(name, stored[name]) for name in names]
        conversion = Conversion(
            list(converter.source_patterns), list(converter.target_patterns), new, self._config, wanted
        )
        return converted(converter.operations, values, conversion)


def _taken(name: str, shape: Shape | None) -> Taken:
    if shape is None:
        raise RecipeError(f"the shape of {name} is not known")
    return Taken(name, shape)


def natural_key(name: str) -> list[tuple[int, str, int, str]]:
    """A key that sorts entries by their text, then by the number at their end. Numbers are compared as text, because a
    file may contain numbers with any number of digits.

    >>> sorted(["e.10", "e.2", "e.w10", "e.w9", "e.w"], key=natural_key)
    ['e.2', 'e.10', 'e.w', 'e.w9', 'e.w10']
    """
    key = []
    for entry in name.split("."):
        text = re.sub(r"\d+$", "", entry)
        digits = entry[len(text) :].lstrip("0") or entry[len(text) :][-1:]
        key.append((1 if text else 0, text, len(digits), digits))
    return key
