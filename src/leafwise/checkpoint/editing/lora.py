"""LoRA adapters of PEFT: merged into the weights that they were trained for."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from leafwise.checkpoint.editing.contents import Contents, SourceRows
from leafwise.checkpoint.editing.result import Steps
from leafwise.core.dtypes import is_float
from leafwise.core.leaf import shape_text
from leafwise.core.pairing.row_matching import match_keys
from leafwise.core.path import escape, shown_file
from leafwise.core.roles.recipes import Taken
from leafwise.core.verbs import opened
from leafwise.errors import FileError, QueryError
from leafwise.files.arrays.derived import LowRankSum
from leafwise.files.arrays.stored import Stored
from leafwise.files.sources import disk as local

CONFIG = "adapter_config.json"
_MAX_CONFIG = 1 << 24  # bytes
_WRAPPER = "base_model.model."
# Name of an array: a module, which of its two matrices, and, unless PEFT removed it, the name of the adapter.
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?:embedding_)?(?P<which>[AB])(?:\.(?P<adapter>\w+?))??(?:\.weight)?")
# Ways to initialize the matrices after which the weights of the base model are those of its checkpoint.
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
# Options of PEFT that change what the adapter computes, each with the value that leaves it as it is.
_REFUSED_OPTIONS = {
    "use_dora": "DoRA",
    "lora_bias": "biases of adapters",
    "use_qalora": "QALoRA",
    "layer_replication": "replicated layers",
    "target_parameters": "adapters for single parameters",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow routing",
}


def adapters_of(lora: Any) -> list[tuple[str, float]]:
    """What `lora=` asks for: the path of each adapter, and a factor for it."""
    if isinstance(lora, str | os.PathLike):
        return [(os.fspath(lora), 1.0)]
    if isinstance(lora, Mapping) and lora:
        pairs = list(lora.items())
        if all(isinstance(path, str | os.PathLike) and _is_number(factor) for path, factor in pairs):
            return [(os.fspath(path), float(factor)) for path, factor in pairs]
    raise QueryError(f'lora= takes the folder of an adapter, or a dict such as {{"adapter": 0.5}}, not {lora!r}')


def _is_number(factor: Any) -> bool:
    return isinstance(factor, int | float) and not isinstance(factor, bool) and math.isfinite(factor)


class _Matrices(NamedTuple):
    """The names of the two matrices for one module in the adapter."""

    down: str
    up: str
    is_embedding: bool


class _Whole(NamedTuple):
    """The name in the adapter of an array that replaces one of the source. `is_base` is whether it is the weight below
    two matrices, which PEFT saves if it is an embedding: new tokens may have been added to it."""

    name: str
    is_base: bool


class Adapter:
    """An adapter in a folder, and the factor to merge it with."""

    def __init__(self, path: str, factor: float, files: ExitStack, saturate: bool) -> None:
        self.path, self.factor, self.saturate = path, factor, saturate
        self.config = _config(path)
        self.source = SourceRows(files.enter_context(opened(path, "edit")))

    def merge(self, contents: Contents, steps: Steps) -> None:
        """Replaces weights by their sums with the products of the adapter's matrices."""
        shown = shown_file(self.path)
        steps.problems += [f"cannot merge {shown}: {reason}" for reason in _refusals(self.config)]
        pairs, replaced, unknown = _sorted_out(self.source.rows)
        steps.problems += [
            f"cannot merge {escape(name)} of {shown}: leafwise merges pairs of LoRA matrices, and modules that were "
            "saved whole"
            for name in unknown
        ]
        if not pairs and not unknown:
            steps.problems.append(f"{shown} contains no LoRA matrices")
        weights = {module: f"{module}.weight" for module in pairs}
        names = match_keys([*weights.values(), *replaced], contents.names())
        self._replace(contents, replaced, names, steps)
        merged = []
        for module, matrices in pairs.items():
            name = names.get(weights[module])
            if name is None:
                steps.problems.append(f"the adapter has matrices for {escape(module)}, which is not in the source")
            elif reason := self._add_product(contents, name, module, matrices):
                steps.problems.append(f"cannot merge the adapter into {escape(name)}: {reason}")
            else:
                merged.append(name)
        times = "" if self.factor == 1 else f" × {self.factor:g}"
        steps.add("merge", f"{shown}{times}", merged)

    def _replace(
        self, contents: Contents, replaced: Mapping[str, _Whole], names: Mapping[str, str], steps: Steps
    ) -> None:
        """Replaces arrays by those that PEFT saved whole with the adapter, such as a new classifier."""
        done = []
        for target, whole in replaced.items():
            name = names.get(target)
            if name is None:
                steps.problems.append(f"the adapter contains {escape(target)}, which is not in the source")
                continue
            stored = contents.stored_name(name)
            array, value = contents.arrays[stored], self.source.value(whole.name)
            shape = value.spec.shape or ()
            if len(contents.names_of(stored)) > 1:
                reason = f"it is tied; untie it, as in untie={name!r}"
            elif self.factor != 1 and not whole.is_base:
                reason = f"that is not possible with a factor of {self.factor:g}"
            elif shape != array.shape and not whole.is_base:
                reason = f"it is {shape_text(array.shape)}, and the adapter has {shape_text(shape)}"
            else:
                contents.values[stored] = value
                array.changed(Taken(stored, shape), "replace")
                done.append(name)
                continue
            steps.problems.append(f"cannot replace {escape(name)} by that of the adapter: {reason}")
        if done:
            steps.add("replace", "arrays that the adapter contains whole", done)

    def _add_product(self, contents: Contents, name: str, module: str, matrices: _Matrices) -> str:
        """Adds the product of two matrices to a weight. Returns why that is not possible, or an empty string."""
        stored = contents.stored_name(name)
        if len(others := contents.names_of(stored)) > 1:
            other = next(other for other in others if other != name)
            return f"it is tied to {escape(other)}, which the adapter does not change; untie it, as in untie={other!r}"
        array, base = contents.arrays[stored], contents.values[stored]
        down, up = self.source.value(matrices.down), self.source.value(matrices.up)
        if not all(is_float(value.spec.dtype) for value in (base, down, up)):
            return f"it contains {base.spec.dtype} numbers"
        scale = self._scale(module, matrices)
        if scale is None:
            return "the configuration of the adapter has no valid lora_alpha and rank"
        transposed = matrices.is_embedding or bool(self.config.get("fan_in_fan_out"))
        expected = _product_shape(up, down, transposed)
        if expected != base.spec.shape:
            given = "matrices that do not fit together" if expected is None else shape_text(expected)
            return f"it is {shape_text(base.spec.shape)}, and the adapter has {given}"
        contents.values[stored] = LowRankSum(base, up, down, self.factor * scale, transposed, self.saturate)
        array.changed(array.recipe, "merge")
        return ""

    def _scale(self, module: str, matrices: _Matrices) -> float | None:
        """The factor of the product of the matrices, as PEFT computes it; None if its configuration is not valid."""
        rank = (self.source.spec(matrices.down).shape or (0,))[0]
        alpha = self.config.get("lora_alpha", 8)
        patterns = self.config.get("alpha_pattern") or {}
        for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
            if _fits_module(str(pattern), module):
                alpha = value
                break
        if not _is_number(alpha) or not rank:
            return None
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def _fits_module(pattern: str, module: str) -> bool:
    """Whether a pattern of PEFT's configuration, a regular expression for the end of a name, fits a module."""
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except re.error as error:
        raise FileError(f"cannot read {CONFIG}: {pattern!r} is not a regular expression: {error}") from error


def _config(path: str) -> dict[str, Any]:
    """The configuration of an adapter, from the JSON file in its folder."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    file = os.path.join(folder, CONFIG)
    try:
        config = json.loads(local.disk.content(file, _MAX_CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"cannot read {shown_file(file)}: {reason}; lora= takes a folder that PEFT wrote, with the scale of the "
            f"adapter in {CONFIG}"
        ) from error
    if not isinstance(config, dict):
        raise FileError(f"cannot read {shown_file(file)}: it does not contain a dict")
    return config


def _refusals(config: Mapping[str, Any]) -> Iterable[str]:
    """Why an adapter cannot be merged, from its configuration."""
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        yield f"it is an adapter of type {kind!r}, and leafwise merges LoRA only"
    for option, what in _REFUSED_OPTIONS.items():
        if config.get(option):
            yield f"leafwise does not merge {what} ({option}); merge it with PEFT: model.merge_and_unload()"
    init = config.get("init_lora_weights")
    if init not in _PLAIN_INITS:
        yield (
            f"with init_lora_weights={init!r}, PEFT changes the weights of the base model, so its checkpoint does not "
            "fit the adapter; merge it with PEFT: model.merge_and_unload()"
        )


def _sorted_out(names: Iterable[str]) -> tuple[dict[str, _Matrices], dict[str, _Whole], list[str]]:
    """The matrices of each module; arrays that replace one of the source, by their names there; and all others."""
    by_module: dict[str, dict[str, str]] = {}
    replaced: dict[str, _Whole] = {}
    unknown = []
    for name in names:
        bare = name.removeprefix(_WRAPPER)
        match = _MATRIX.fullmatch(bare)
        if match is not None:
            by_module.setdefault(match["module"], {})[match["which"]] = name
        elif re.search(r"(^|\.)(lora_|vera_|hada_|lokr_|oft_|token_adapter|prompt_|ia3_)", bare):
            unknown.append(name)
        else:
            target = bare.replace(".modules_to_save.", ".").replace(".base_layer.", ".")
            replaced[target] = _Whole(name, ".base_layer." in bare)
    pairs = {}
    for module, matrices in by_module.items():
        if matrices.keys() == {"A", "B"}:
            pairs[module] = _Matrices(matrices["A"], matrices["B"], ".lora_embedding_" in matrices["A"])
        else:
            unknown += matrices.values()
    return pairs, replaced, unknown


def _product_shape(up: Stored, down: Stored, transposed: bool) -> tuple[int, ...] | None:
    """The shape of the product of the matrices of an adapter; None if they do not fit together."""
    above, below = up.spec.shape or (), down.spec.shape or ()
    if len(above) < 2 or len(below) < 2 or above[1] != below[0] or any(axis != 1 for axis in above[2:]):
        return None
    if transposed:
        return (below[1], above[0]) if len(below) == 2 else None
    return (above[0], *below[1:])
