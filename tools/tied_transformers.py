"""Runs the operations that lose ties on every architecture of transformers that ties weights, built small.

python -m tools.tied_transformers              every architecture, and records the table (minutes)
python -m tools.tied_transformers bert t5      some of them
"""

import copy
import pickle
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from tools import sweeps
from tools.architectures import models, names_with_heads
from torch import nn

import leafwise as lw


def signature(model: Any) -> list[tuple[str, ...]]:
    """The names that are tied, without what wrappers add."""
    return sorted(tuple(sorted(str(path) for path in tie.leaf.paths)) for tie in lw.ties(model))


def fresh(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _assigned(model: nn.Module) -> nn.Module:
    model.load_state_dict(fresh(model), assign=True)
    return model


def _from_meta(model: nn.Module) -> nn.Module:
    return model.to("meta").to_empty(device="cpu")


def _subset(model: nn.Module) -> nn.Module:
    dropped = {str(path) for tie in lw.ties(model) for path in tie.leaf.paths[1:]}
    model.load_state_dict({name: value for name, value in fresh(model).items() if name not in dropped})
    return model


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "to(bfloat16)": lambda model: model.to(torch.bfloat16),
    "assign=True": _assigned,
    "meta, to_empty": _from_meta,
    "one name of each tie": _subset,
}


def outcome(model: nn.Module, operation: Callable[[Any], Any], with_leafwise: bool) -> str:
    """Whether the ties of a copy of the model survive, judged by memory, not by declared ties: kept, lost or error."""
    model = copy.deepcopy(model)
    before = signature(model)
    if with_leafwise:
        model = lw.keep_ties(model)
    try:
        after = operation(model)
    except Exception as error:
        return f"error: {type(error).__name__}: {str(error)[:200]}" if with_leafwise else "error"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.TieWarning)
        return "kept" if signature(after) == before else "lost"


class Outcome(NamedTuple):
    """For each operation on an architecture, the result in plain PyTorch and with leafwise; None without ties."""

    name: str
    operations: dict[str, tuple[str, str]] | None

    def failures(self) -> list[str]:
        return [
            f"{self.name}: {label}: {ours}"
            for label, (plain, ours) in (self.operations or {}).items()
            if ours != "kept" and not (plain == "error" and label == "pickle")
        ]


def outcomes_of(name: str, seed: int | None = None) -> Outcome | None:
    """The results for an architecture; None if it cannot be built small."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in models(name, seed=seed, with_head=True):
            if not signature(model):
                return Outcome(name, None)
            each = OPERATIONS.items()
            return Outcome(name, {one: (outcome(model, how, False), outcome(model, how, True)) for one, how in each})
    return None


LABELS = {
    "pickle": "pickle (PyTorch cannot pickle parametrized modules)",
    "to(bfloat16)": "`.to(torch.bfloat16)`",
    "assign=True": "`load_state_dict(assign=True)`",
    "meta, to_empty": "on meta, then `to_empty()`",
    "one name of each tie": "`load_state_dict` with one name of each tie",
}


def table(found: list[Outcome]) -> str:
    import transformers

    tied = [one.operations for one in found if one.operations is not None]
    lines = [
        f"{len(tied)} of the {len(found)} architectures of transformers {transformers.__version__} that can have a "
        "tied head, and can be built small from their configs, tie weights:",
        "",
        f"| tie kept | plain PyTorch {torch.__version__.partition('+')[0]} | with `lw.keep_ties` |",
        "|---|---|---|",
    ]
    for label in OPERATIONS:
        plain, ours = (sum(one[label][side] == "kept" for one in tied) for side in (0, 1))
        lines.append(f"| {LABELS.get(label, label)} | {plain} of {len(tied)} | {ours} of {len(tied)} |")
    return "\n".join(lines)


def main() -> int:
    options = sweeps.parser(__doc__, "architectures").parse_args()
    sweeps.be_quiet()
    work = partial(outcomes_of, seed=options.seed)
    found = [one for one in sweeps.in_processes(work, options.only or names_with_heads(), "architectures") if one]
    print(table(found))
    failures = [failure for one in found for failure in one.failures()]
    for failure in failures:
        print("FAILED", failure)
    if not options.only:
        sweeps.record("make ties", {"ties": table(found)}, options.seed)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
