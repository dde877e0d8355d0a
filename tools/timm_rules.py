"""Compares `lw.layer_decay` and `lw.no_decay` with timm's own rules, on every model of timm.

    python -m tools.timm_rules                     every model of every family, and records the tables (minutes)
    python -m tools.timm_rules swin_transformer    some families

The reference is timm's `param_groups_layer_decay` and `param_groups_weight_decay` with the model's `no_weight_decay()`.
Models are built on the meta device, because only names and shapes matter. The exit status is 1 if there is a difference
that the table does not explain.
"""

import math
import warnings
from collections import Counter
from typing import Any, NamedTuple
from unittest import mock

import torch
from tools import sweeps
from tools.with_timm import import_timm
from torch import nn

import leafwise as lw
from leafwise.homes.torch.training.grouping import TorchGrouping

DECAY = 0.75


# -- timm ------------------------------------------------------------------------------------------------------


def families() -> list[str]:
    return [str(name) for name in import_timm().list_modules()]


def models(family: str) -> list[str]:
    return [str(name) for name in import_timm().list_models(module=family)]


def build(name: str) -> nn.Module:
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model: nn.Module = import_timm().create_model(name, pretrained=False)
    return model


def timm_scales(model: nn.Module) -> dict[str, float]:
    """The factor by which timm multiplies the learning rate of each parameter."""
    groups = import_timm().optim.param_groups_layer_decay(model, layer_decay=DECAY)
    return _named(model, {id(value): group["lr_scale"] for group in groups for value in group["params"]})


def timm_decayed(model: Any) -> set[str]:
    wished = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    groups = import_timm().optim.param_groups_weight_decay(model, 0.1, no_weight_decay_list=wished)
    return {*_named(model, {id(value): 1 for group in groups if group["weight_decay"] for value in group["params"]})}


def _named(model: nn.Module, found: dict[int, Any]) -> dict[str, Any]:
    return {name: found[id(value)] for name, value in model.named_parameters() if id(value) in found}


# -- leafwise --------------------------------------------------------------------------------------------------


def scales(model: nn.Module, *more: lw.Rule) -> dict[str, float]:
    groups = lw.groups(model, [lw.layer_decay(DECAY), *more], lr=1.0)
    return {name: group["lr"] for group in groups for name in group["param_names"]}


def scales_by_tree(model: nn.Module) -> dict[str, float]:
    """Without the model's own `group_matcher`: only by the blocks that leafwise finds in the tree."""
    with mock.patch.object(TorchGrouping, "depths_by", return_value=None):
        return scales(model)


def decayed(model: nn.Module) -> set[str]:
    groups = lw.groups(model, [lw.no_decay()])
    return {name for group in groups if "weight_decay" not in group for name in group["param_names"]}


# -- compared --------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """One model: its levels in timm, in leafwise and from the tree alone (0 if a rule is missing), why rates differ,
    and the leaves that only timm or only leafwise decays."""

    name: str
    parameters: int
    timm_levels: int
    levels: int
    tree_levels: int
    why: str
    only_timm: tuple[str, ...]
    only_leafwise: tuple[str, ...]

    @property
    def is_explained(self) -> bool:
        """Whether the page gives a reason for every difference."""
        return self.why != UNKNOWN and not self.only_leafwise


UNKNOWN = "different"
SHARED = "equal with a rule for the parameters that blocks share"
NO_MATCHER = "the model has no `group_matcher`: in timm a level is 12 parameters, in leafwise a block"
MATCHES_NOTHING = "timm's matcher matches no parameter: in timm there is one level, in leafwise one per block"


def compared(name: str) -> Compared:
    model = build(name)
    theirs, ours, why = timm_scales(model), {}, ""
    try:
        ours = scales(model)
    except lw.RuleError:
        # A leaf that blocks share has the depth of each of them. timm uses the first name that it meets.
        ours, why = scales(model, *_first_names(model)), SHARED
    if not _are_equal(theirs, ours):
        why = UNKNOWN
        if not hasattr(model, "group_matcher"):
            why = NO_MATCHER
        elif len(set(theirs.values())) == 1:
            why = MATCHES_NOTHING
    try:
        tree_levels = _levels(scales_by_tree(model))
    except lw.RuleError:
        tree_levels = 0
    timm_set, our_set = timm_decayed(model), decayed(model)
    return Compared(
        name, sum(one.numel() for one in model.parameters()), _levels(theirs), _levels(ours), tree_levels, why,
        tuple(sorted(timm_set - our_set)), tuple(sorted(our_set - timm_set)),
    )  # fmt: skip


def _first_names(model: nn.Module) -> list[lw.Rule]:
    return [lw.Rule(str(leaf.path), wins=True) for leaf in lw.tree(model) if len(leaf.names) > 1]


def _are_equal(theirs: dict[str, float], ours: dict[str, float]) -> bool:
    return theirs.keys() == ours.keys() and all(math.isclose(theirs[name], ours[name]) for name in theirs)


def _levels(found: dict[str, float]) -> int:
    return len({round(math.log(scale, DECAY)) for scale in found.values()})


# -- the table -------------------------------------------------------------------------------------------------


def line(family: str, found: list[Compared]) -> str:
    smallest = min(found, key=lambda one: one.parameters)
    differing = {one.why for one in found if one.why}
    count = sum(bool(one.why) for one in found)
    rates = "; ".join(sorted(differing)) or "equal"
    rates += f" ({count} of {len(found)})" if 0 < count < len(found) else ""
    also = sorted({f"`{name.rpartition('.')[2]}`" for one in found for name in one.only_timm})
    models_with = sum(bool(one.only_timm) for one in found)
    decay = f"leafwise does not decay {', '.join(also)}" if also else "equal"
    if also and models_with < len(found):
        decay += f" ({models_with} of {len(found)})"
    extra = {f"`{name}`" for one in found for name in one.only_leafwise}
    decay += f"; only leafwise decays {', '.join(sorted(extra))}" if extra else ""
    levels = f"{smallest.timm_levels} | {smallest.levels} | {smallest.tree_levels or 'needs a rule'}"
    return f"| {family} | {len(found)} | {smallest.name} | {levels} | {rates} | {decay} |"


HEAD = [
    "| family | models | smallest model | levels in timm | in leafwise | from the tree alone | rates | decay |",
    "|---|---|---|---|---|---|---|---|",
]


def summary(everything: list[Compared], families: int) -> str:
    """The counts, for docs/guarantees.md."""
    whys = Counter(one.why for one in everything if one.why)
    reasons = "; ".join(f"{count}: {why}" for why, count in whys.most_common())
    rates, decay = sum(whys.values()), sum(bool(one.only_timm or one.only_leafwise) for one in everything)
    total = len(everything)
    return "\n".join(
        [
            f"{total:,} models of the {families} families of timm {import_timm().__version__}:",
            "",
            "| | equal to timm | different |",
            "|---|--:|---|",
            f"| rates of layer decay | {total - rates:,} | {rates:,} ({reasons}) |",
            f"| which leaves are decayed | {total - decay:,} | {decay:,}: leafwise also exempts scales with several "
            "axes, such as a `gamma` of 8×1×1, which timm decays |",
            f"| leaves that leafwise decays and timm exempts | | {sum(len(one.only_leafwise) for one in everything)} |",
        ]
    )


def compared_family(family: str) -> list[Compared]:
    return [compared(name) for name in models(family)]


def main() -> int:
    options = sweeps.parser(__doc__, "families").parse_args()
    chosen = options.only or families()
    found = dict(zip(chosen, sweeps.in_processes(compared_family, chosen, "families"), strict=True))
    everything = [one for some in found.values() for one in some]
    text = "\n".join([*HEAD, *(line(family, some) for family, some in found.items())])
    print(text, summary(everything, len(found)), sep="\n\n")
    wrong = [f"{one.name} {one.why} {one.only_leafwise}" for one in everything if not one.is_explained]
    for one in wrong:
        print("WRONG", one)
    if not options.only:
        sweeps.record("make timmrules", {"timmrules": summary(everything, len(found)), "timm families": text})
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
