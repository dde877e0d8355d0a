"""Saves every architecture of transformers with `save_pretrained`, and loads it with leafwise.

    python -m tools.saved_transformers                every architecture, and records the table (half an hour)
    python -m tools.saved_transformers mixtral vit    some of them

The checkpoint is one file or shards, loaded into a model with other values, or one file loaded into a model on meta.
A state dict, which has the names of the model, must load without any conversion. Every tensor, including buffers, must
then be bit for bit equal to the model that was saved. As a second opinion, the folder is loaded with `from_pretrained`.
"""

import copy
import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tools import sweeps
from tools.architectures import models, names
from tools.auto_renames import save
from tools.meta_loads import on_meta, tensors
from torch import nn

import leafwise as lw

MODES = {
    "one file": "`save_pretrained`, one file",
    "shards": "`save_pretrained`, shards",
    "meta": "`save_pretrained`, into a model on meta",
    "names": "`torch.save(model.state_dict())`, with the names of the model",
}
Values = dict[str, torch.Tensor]


class Outcome(NamedTuple):
    """The result for an architecture: for each way to load it, "exact", "refused: …" or "WRONG: …"; whether names or
    layouts were converted; and whether `from_pretrained` restores every value."""

    name: str
    modes: dict[str, str]
    is_converted: bool
    is_exact_there: bool


def make_distinct(model: nn.Module) -> None:
    """Gives every tensor that is saved values that no other has; the others keep those of the constructor."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in {id(value): value for value in model.state_dict(keep_vars=True).values()}.values():
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            elif tensor.dtype != torch.bool:
                tensor.add_(1)


def differing(truth: Values, other: nn.Module) -> list[str]:
    theirs = tensors(other)
    return [
        name
        for name, value in truth.items()
        if name not in theirs or theirs[name].is_meta or not _same_bits(theirs[name].detach(), value)
    ]


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def loaded(truth: Values, target: nn.Module, folder: Path) -> tuple[str, bool]:
    """The result of a load, and whether names or layouts were converted."""
    plan = lw.plan(target, folder)
    if not plan.holds:
        return f"refused: {plan.problems[0].message[:150]} ({len(plan.problems)})", bool(plan.library)
    lw.load(target, folder)
    wrong = differing(truth, target)
    return f"WRONG: {', '.join(wrong[:4])} ({len(wrong)})" if wrong else "exact", bool(plan.library)


def emptied(model: nn.Module) -> nn.Module:
    """The model with zeros in every tensor that is saved."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    return model


def outcome(name: str, model: Any, fresh: nn.Module, folder: Path) -> Outcome:
    """Saves a model, and loads it into others of the same class."""
    config = copy.deepcopy(model.config)
    meta = on_meta(model)
    make_distinct(model)
    truth = {name: value.detach().clone() for name, value in tensors(model).items()}
    whole, shards, state = folder / "whole", folder / "shards", folder / "state.pt"
    save(model, whole)
    save(model, shards, max_shard_size=max(sum(value.nbytes for value in truth.values()) // 3, 1))
    torch.save(model.state_dict(), state)
    found = {"one file": loaded(truth, fresh, whole), "meta": loaded(truth, meta, whole)}
    found["shards"] = loaded(truth, emptied(fresh), shards)
    found["names"] = loaded(truth, emptied(fresh), state)
    if found["names"][1]:
        found["names"] = "WRONG: names of the model were converted", True
    try:
        there = not differing(truth, type(model).from_pretrained(whole, config=config))
    except Exception:
        there = False
    return Outcome(name, {mode: found[mode][0] for mode in MODES}, found["one file"][1], there)


def outcome_of(name: str, seed: int | None = None) -> Outcome | None:
    """The result for an architecture; None if it cannot be built small."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        built = models(name, 2, seed)
        return outcome(name, *built, Path(folder)) if built else None


def table(found: list[Outcome]) -> str:
    import transformers

    converted = sum(one.is_converted for one in found)
    there = sum(one.is_exact_there for one in found)
    lines = [
        f"{len(found)} architectures of transformers {transformers.__version__} can be built small. {converted} of "
        f"them are stored with other names or in another layout; `from_pretrained` restores {there} exactly.",
        "",
        "| saved by | exact | refused | wrong |",
        "|---|---:|---:|---:|",
    ]
    for mode, words in MODES.items():
        counts = Counter(one.modes[mode].partition(":")[0] for one in found)
        lines.append(f"| {words} | {counts['exact']} | {counts['refused']} | {counts['WRONG']} |")
    return "\n".join(lines)


def main() -> int:
    options = sweeps.parser(__doc__, "architectures").parse_args()
    sweeps.be_quiet()
    found = []
    work = partial(outcome_of, seed=options.seed)
    for one in sweeps.in_processes(work, options.only or names(), "architectures"):
        if one is not None:
            found.append(one)
            for mode, kind in one.modes.items():
                if kind != "exact":
                    print(f"{one.name} ({mode}): {kind}", flush=True)
    print(f"\n{table(found)}")
    print("\nnot exact by from_pretrained:", ", ".join(one.name for one in found if not one.is_exact_there) or "none")
    if not options.only:
        sweeps.record("make saved", {"saved": table(found)}, options.seed)
    return int(any(kind.startswith("WRONG") for one in found for kind in one.modes.values()))


if __name__ == "__main__":
    sys.exit(main())
