"""LoRA adapters of PEFT: merged into the weights that they were trained for."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from leafwise.checkpoint.editing.contents import Contents, SourceRows
from leafwise.checkpoint.editing.steps import Steps
from leafwise.core.dtypes import is_float
from leafwise.core.leaf import shape_text
from leafwise.core.match import match_keys
from leafwise.core.path import escape, shown_file
from leafwise.core.recipes import Taken
from leafwise.core.verbs import opened
from leafwise.errors import FileError, QueryError
from leafwise.files.arrays import Stored
from leafwise.files.derived import LowRankSum

CONFIG = "adapter_config.json"
_MAX_CONFIG = 1 << 24  # bytes
_WRAPPER = "base_model.model."
# Name of an array: a module, which of its two matrices, and, unless PEFT removed it, the name of the adapter.
_MATRIX = re.compile(
    r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<which>[AB])(?:\.(?P<adapter>\w+?))??(?:\.weight)?"
)
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


def add_adapter(contents: Contents, path: str, factor: float, files: ExitStack, steps: Steps) -> None:
    """Replaces weights by their sums with the products of an adapter's matrices."""
    config = _config(path)
    for reason in _refusals(config):
        steps.problems.append(f"cannot merge {shown_file(path)}: {reason}")
    adapter = SourceRows(files.enter_context(opened(path, "edit")))
    pairs, replaced, unknown = _sorted_out(adapter.rows)
    steps.problems += [
        f"cannot merge {escape(name)} of {shown_file(path)}: leafwise merges pairs of LoRA matrices, and modules that "
        "were saved whole"
        for name in unknown
    ]
    weights = {module: f"{module}.weight" for module in pairs}
    found = match_keys([*weights.values(), *replaced], contents.names())
    merged = []
    for module, matrices in pairs.items():
        name = found.get(weights[module])
        if name is None:
            steps.problems.append(f"the adapter has matrices for {escape(module)}, which is not in the source")
            continue
        if reason := _merge(
            contents, name, adapter, matrices, factor * _scale(config, module, adapter, matrices), config
        ):
            steps.problems.append(f"cannot merge the adapter into {escape(name)}: {reason}")
            continue
        merged.append(name)
    if not pairs and not unknown:
        steps.problems.append(f"{shown_file(path)} contains no LoRA matrices")
    times = "" if factor == 1 else f" × {factor:g}"
    steps.add("merge", f"{shown_file(path)}{times}", merged)
    _replace(contents, adapter, {target: found.get(target) for target in replaced}, replaced, factor, steps)


def _config(path: str) -> dict[str, Any]:
    """The configuration of an adapter, from the JSON file in its folder."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    file = os.path.join(folder, CONFIG)
    try:
        if os.path.getsize(file) > _MAX_CONFIG:
            raise FileError(f"cannot read {shown_file(file)}: it is too large")
        with open(file, encoding="utf-8") as stream:
            config = json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FileError):
            raise
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


def _sorted_out(names: Iterable[str]) -> tuple[dict[str, _Matrices], dict[str, str], list[str]]:
    """The matrices of each module; arrays that replace one of the source, by their names there; and all others."""
    found: dict[str, dict[str, str]] = {}
    embeddings: set[str] = set()
    replaced: dict[str, str] = {}
    unknown = []
    for name in names:
        bare = name.removeprefix(_WRAPPER)
        match = _MATRIX.fullmatch(bare)
        if match is not None:
            found.setdefault(match["module"], {})[match["which"]] = name
            if match["embedding"]:
                embeddings.add(match["module"])
        elif re.search(r"(^|\.)(lora_|base_layer|vera_|hada_|lokr_|oft_|token_adapter|prompt_|ia3_)", bare):
            unknown.append(name)
        else:
            replaced[bare.replace(".modules_to_save.", ".")] = name
    pairs = {}
    for module, matrices in found.items():
        if matrices.keys() == {"A", "B"}:
            pairs[module] = _Matrices(matrices["A"], matrices["B"], module in embeddings)
        else:
            unknown += matrices.values()
    return pairs, replaced, unknown


def _scale(config: Mapping[str, Any], module: str, adapter: SourceRows, matrices: _Matrices) -> float:
    """The factor of the product of the matrices, as PEFT computes it."""
    rank = (adapter.spec(matrices.down).shape or (0,))[0]
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = value
            break
    if not _is_number(alpha) or not rank:
        return math.nan
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _merge(
    contents: Contents, name: str, adapter: SourceRows, matrices: _Matrices, scale: float, config: Mapping[str, Any]
) -> str:
    """Adds the product of two matrices to a weight. Returns why that is not possible, or an empty string."""
    stored = contents.stored_name(name)
    if len(others := contents.names_of(stored)) > 1:
        other = next(other for other in others if other != name)
        return f"it is tied to {escape(other)}, which the adapter does not change; untie it, as in untie={other!r}"
    array, base = contents.arrays[stored], contents.values[stored]
    down, up = adapter.value(matrices.down), adapter.value(matrices.up)
    if not all(is_float(value.spec.dtype) for value in (base, down, up)):
        return f"it contains {base.spec.dtype} numbers"
    if not math.isfinite(scale):
        return "the configuration of the adapter has no valid lora_alpha and rank"
    transposed = matrices.is_embedding or bool(config.get("fan_in_fan_out"))
    expected = _product_shape(up, down, transposed)
    if expected != base.spec.shape:
        given = "matrices that do not fit together" if expected is None else shape_text(expected)
        return f"it is {shape_text(base.spec.shape)}, and the adapter has {given}"
    contents.values[stored] = LowRankSum(base, up, down, scale, transposed)
    array.changes.append("merge")
    array.order = None
    return ""


def _product_shape(up: Stored, down: Stored, transposed: bool) -> tuple[int, ...] | None:
    """The shape of the product of the matrices of an adapter; None if they do not fit together."""
    above, below = up.spec.shape or (), down.spec.shape or ()
    if len(above) < 2 or len(below) < 2 or above[1] != below[0] or any(axis != 1 for axis in above[2:]):
        return None
    if transposed:
        return (below[1], above[0]) if len(below) == 2 else None
    return (above[0], *below[1:])


def _replace(
    contents: Contents,
    adapter: SourceRows,
    found: Mapping[str, str | None],
    replaced: Mapping[str, str],
    factor: float,
    steps: Steps,
) -> None:
    """Replaces whole arrays by those that PEFT saved with the adapter, such as a new classifier."""
    done = []
    for target, name in found.items():
        value = adapter.value(replaced[target])
        if name is None:
            steps.problems.append(f"the adapter contains {escape(target)}, which is not in the source")
            continue
        stored = contents.stored_name(name)
        array = contents.arrays[stored]
        if len(contents.names_of(stored)) > 1:
            steps.problems.append(f"the adapter replaces {escape(name)}, which is tied; untie it, as in untie={name!r}")
        elif factor != 1:
            steps.problems.append(
                f"the adapter replaces {escape(name)}, so it cannot be merged with a factor of {factor:g}"
            )
        elif value.spec.shape != array.shape:
            shapes = f"{shape_text(array.shape)}, and the adapter has {shape_text(value.spec.shape)}"
            steps.problems.append(f"cannot replace {escape(name)}: it is {shapes}")
        else:
            contents.values[stored] = value
            array.recipe = Taken(stored, array.shape)
            array.changes.append("replace")
            done.append(name)
    if done:
        steps.add("replace", "arrays that the adapter contains whole", done)
