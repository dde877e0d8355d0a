"""Saves every architecture of transformers with `save_pretrained`, and loads it into a state dict.

    python -m tools.auto_renames              every architecture that can be built small; records the table (minutes)
    python -m tools.auto_renames vit mixtral  some of them

`save_pretrained` stores many leaves under names that the model does not have. leafwise knows them if it loads into the
model; into its state dict, it has only names and shapes. Each checkpoint is loaded as it is or, if that fails, with
`rename="auto"`. Every leaf must then have the values of the saved model, which are all distinct.
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
from torch import nn

import leafwise as lw

OUTCOMES = {
    "as it is": "load as they are",
    "exact": 'load with `rename="auto"`, every value right',
    "WRONG": "load with a wrong value",
    "stored otherwise": "refused: values are stored fused, split or transposed, so no rename is right",
    "not certain": "refused: a rename would work, but the names do not show which one",
}


class Outcome(NamedTuple):
    """The result for an architecture, a detail to print, and whether transformers itself restores every value."""

    name: str
    kind: str
    detail: str
    is_exact_there: bool


def distinct(model: nn.Module) -> None:
    """Gives every leaf values that no other leaf has."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator))


def save(model: Any, folder: Path, **options: Any) -> None:
    """Like `save_pretrained`, but without its checks of the config, which some small configs do not pass."""
    config = type(model.config)
    own = config.__dict__.get("save_pretrained")
    config.save_pretrained = lambda *_, **__: None
    try:
        model.save_pretrained(folder, **options)
    finally:
        if own is None:
            del config.save_pretrained
        else:
            config.save_pretrained = own


def differing(model: nn.Module, other: nn.Module) -> list[str]:
    theirs = other.state_dict()
    return [
        name
        for name, value in model.state_dict().items()
        if name not in theirs or not torch.equal(theirs[name].nan_to_num(), value.nan_to_num())
    ]


def outcome(name: str, model: Any, fresh: nn.Module, folder: Path) -> Outcome:
    """Saves a model, and loads it into another model of the same class."""
    config = copy.deepcopy(model.config)
    save(model, folder)
    kind, detail = _loaded(model, fresh, folder)
    try:
        there = not differing(model, type(model).from_pretrained(folder, config=config))
    except Exception:
        there = False
    return Outcome(name, kind, detail, there)


def _loaded(model: nn.Module, fresh: nn.Module, folder: Path) -> tuple[str, str]:
    state = fresh.state_dict()
    for kind, rename in (("as it is", None), ("exact", "auto")):
        plan = lw.plan(state, folder, rename=rename)
        if plan.holds:
            lw.load(state, folder, rename=rename)
            wrong = differing(model, fresh)
            return ("WRONG", f"{', '.join(wrong[:4])} ({len(wrong)})") if wrong else (kind, "")
    values = {name: value for name, value in model.state_dict().items() if name in plan.missing}
    with lw.open(folder) as file:
        stored = [torch.from_numpy(file[name].numpy()) for name in plan.unexpected]
    lost = [
        name
        for name, value in values.items()
        if not any(v.shape == value.shape and torch.equal(v, value) for v in stored)
    ]
    if lost:
        return "stored otherwise", f"{lost[0]} ({len(lost)})"
    old, new = plan.proposals[0].pairs[0] if plan.proposals else ("", "")
    return "not certain", f"{old} → {new} ({len(plan.missing)})"


def outcome_of(name: str, seed: int | None = None) -> Outcome | None:
    """The result for an architecture; None if it cannot be built small."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        built = models(name, 2, seed)
        if not built:
            return None
        model, fresh = built
        distinct(model)
        return outcome(name, model, fresh, Path(folder))


def table(found: list[Outcome]) -> str:
    import transformers

    counts = Counter(one.kind for one in found)
    there = sum(one.is_exact_there for one in found)
    return "\n".join(
        [
            f"{len(found)} architectures of transformers {transformers.__version__} can be built small; "
            f"`from_pretrained` restores {there} of them exactly.",
            "",
            "| architectures | |",
            "|---:|---|",
            *(f"| {counts[kind]} | {words} |" for kind, words in OUTCOMES.items()),
        ]
    )


def main() -> int:
    options = sweeps.parser(__doc__, "architectures").parse_args()
    sweeps.be_quiet()
    work = partial(outcome_of, seed=options.seed)
    found = [one for one in sweeps.in_processes(work, options.only or names(), "architectures") if one]
    print(table(found))
    for kind in ("WRONG", "not certain", "stored otherwise"):
        some = [f"- {one.name}: {one.detail}" for one in found if one.kind == kind]
        if some:
            print(f"\n{kind}:", *some, sep="\n")
    if not options.only:
        sweeps.record("make renames", {"renames": table(found)}, options.seed)
    return int(any(one.kind == "WRONG" for one in found))


if __name__ == "__main__":
    sys.exit(main())
