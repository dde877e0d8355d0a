"""Saves every architecture of transformers, and loads it into a model on the meta device.

    python -m tools.meta_loads              every architecture that can be built small, and records the counts (minutes)
    python -m tools.meta_loads clip bert    some of them

Every tensor, including buffers that are not in the checkpoint, must be bit for bit equal to the model that was saved.
"""

import copy
import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tools import sweeps
from tools.architectures import models, names
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


def result_of(name: str, seed: int | None = None) -> tuple[str, str] | None:
    """The name and class of an architecture, and the result; None if it cannot be built small."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        for model in models(name, seed=seed):
            return f"{name} ({type(model).__name__})", result(model, Path(folder))
    return None


def table(counts: Counter[str]) -> str:
    import transformers

    rows = {
        "exact": "every parameter and buffer has the same bits as in the model that was saved",
        "WRONG": "a value is wrong",
        "refused": "refused",
        "cannot be built on meta": "cannot be built on meta by transformers",
    }
    return "\n".join(
        [
            f"| architectures of transformers {transformers.__version__} | |",
            "|---:|---|",
            *(f"| {counts[kind]} | {words} |" for kind, words in rows.items()),
        ]
    )


def main() -> int:
    options = sweeps.parser(__doc__, "architectures").parse_args()
    sweeps.be_quiet()
    counts: Counter[str] = Counter()
    work = partial(result_of, seed=options.seed)
    for one in sweeps.in_processes(work, options.only or names(), "architectures"):
        if one is not None:
            counts[one[1].partition(":")[0]] += 1
            if one[1] != "exact":
                print(f"{one[0]}: {one[1]}", flush=True)
    print(table(counts))
    if not options.only:
        sweeps.record("make metaloads", {"metaloads": table(counts)}, options.seed)
    return int(bool(counts["WRONG"]))


if __name__ == "__main__":
    sys.exit(main())
