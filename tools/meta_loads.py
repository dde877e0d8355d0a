"""Saves every architecture of transformers, and loads it into a model on the meta device.

    python -m tools.meta_loads              every architecture that can be built small, with a summary (minutes)
    python -m tools.meta_loads clip bert    some of them

Every tensor, including buffers that are not in the checkpoint, must be bit for bit equal to the model that was saved.
"""

import copy
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tools.healthy_models import classes
from tools.tied_transformers import build
from torch import nn

import leafwise as lw


def on_meta(model: Any) -> Any:
    """The same model, without values."""
    with torch.device("meta"):
        return type(model)(copy.deepcopy(model.config))


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def result(model: Any, folder: Path) -> str:
    """`exact`, `refused: …` or a description of what is wrong."""
    path = lw.save(model, folder / "model.safetensors")
    try:
        target = on_meta(model)
    except Exception as error:
        return f"cannot be built on meta: {type(error).__name__}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lw.load(target, path)
    except lw.LoadError as error:
        return f"refused: {str(error).splitlines()[-1].strip()[:150]}"
    theirs = tensors(target)
    wrong = [
        name
        for name, value in tensors(model).items()
        if name not in theirs or theirs[name].is_meta or not torch.equal(theirs[name].nan_to_num(), value.nan_to_num())
    ]
    return f"WRONG: {', '.join(wrong[:4])} ({len(wrong)})" if wrong else "exact"


def results(only: list[str]) -> Iterator[tuple[str, str]]:
    for name, config_class, model_class in classes():
        if only and name not in only:
            continue
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            model = build(config_class, model_class)
            if model is not None:
                yield f"{name} ({model_class.__name__})", result(model, Path(folder))


def main() -> int:
    counts: Counter[str] = Counter()
    for name, found in results(sys.argv[1:]):
        counts[found.partition(":")[0]] += 1
        if found != "exact":
            print(f"{name}: {found}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return int(bool(counts["WRONG"]))


if __name__ == "__main__":
    sys.exit(main())
