"""Loads the state of optimizers into other groups, other orders and other kinds of optimizers, drawn at random.

The model has several parameters of each shape, so that shapes do not reveal a wrong match. The state of a run is saved
in one of eight ways, and `lw.load` loads it into an optimizer with other groups, perhaps of another kind, whose model
may be lazy or on meta. Each parameter must then have exactly the state, and each group the options, that the
parameters of the same names had, and the optimizer must step the parameters of the model. What does not fit must be
refused: another kind of optimizer, or numbered state whose groups have other sizes.

    python -m tools.optimizer_groups                  some hundred trials, and records the table (minutes)
    python -m tools.optimizer_groups --seed 7 12 15   two trials of a sweep again
"""

import copy
import itertools
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from tools import sweeps
from tools.with_timm import import_timm
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

import leafwise as lw

TRIALS = 600
Groups = list[list[str]]
Make = Callable[[list[dict[str, Any]]], Any]

# How the source is stored, and how the table shows it.
STORED = {
    "both": "`lw.save` of model and optimizer",
    "alone": "`lw.save` of the optimizer alone",
    "folder": '`lw.save` with `format="dcp"`',
    "numbered": "`torch.save` of state dicts, numbered",
    "named": "`torch.save` of state dicts with `param_names`",
    "dcp": "`get_optimizer_state_dict`",
    "flattened": "`get_optimizer_state_dict`, flattened",
    "live": "a live model and optimizer",
}
KINDS = ("exact", "refused", "refused needlessly", "wrong", "crashed")


class Outcome(NamedTuple):
    """`kind` is one of `KINDS`, or "impossible" if PyTorch cannot make what was drawn."""

    kind: str
    why: str = ""


class Run(NamedTuple):
    model: nn.Module
    optimizer: Any

    def states(self) -> dict[str, Any]:
        """The state of each parameter that the optimizer steps, and in a wrapper also that of the wrapped optimizer."""
        names = {id(value): name for name, value in self.model.named_parameters()}
        inner = [getattr(self.optimizer, name, None) for name in ("_base_optimizer", "optimizer")]
        holders = [self.optimizer, *(one for one in inner if one is not None)]
        stepped = [value for group in self.optimizer.param_groups for value in group["params"]]
        return {
            names.get(id(value), f"not in the model: {number}"): {
                key: copy.deepcopy(held) for one in holders for key, held in (one.state.get(value) or {}).items()
            }
            for number, value in enumerate(stepped)
        }

    def options(self) -> list[dict[str, Any]]:
        without = ("params", "param_names")
        groups = self.optimizer.param_groups
        return [copy.deepcopy({key: value for key, value in group.items() if key not in without}) for group in groups]

    def values(self) -> dict[str, Any]:
        named = self.model.named_parameters()
        return {name: None if nn.parameter.is_lazy(value) else value.detach().clone() for name, value in named}

    def step(self, seed: int) -> None:
        torch.manual_seed(seed)
        for value in self.model.parameters():
            gradient = torch.randn(4, 4)[: 4 if value.dim() == 2 else 1].reshape(value.shape)
            if value.requires_grad:
                value.grad = gradient
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        self.optimizer.step(*([lambda: torch.tensor(1.0)] if type(self.optimizer) is torch.optim.LBFGS else []))
        self.model.zero_grad()


class Model(nn.Module):
    """Four matrices and three vectors. One of them is tied, and one is frozen."""

    def __init__(self, layer: Callable[..., Any]) -> None:
        super().__init__()
        self.embed, self.head = layer(4, bias=False), layer(4, bias=False)
        self.one, self.two, self.three = layer(4), layer(4), layer(4)
        self.head.weight = self.embed.weight
        self.two.weight.requires_grad = False


NAMES = ["embed.weight", "one.weight", "one.bias", "two.weight", "two.bias", "three.weight", "three.bias"]


def names_of(groups: Groups) -> list[str]:
    return [name for group in groups for name in group]


# -- what is drawn ---------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    source: str  # the kind of optimizer
    target: str
    stored: str
    place: str  # where the model of the target is: plain, lazy or meta
    source_groups: Groups
    target_groups: Groups
    source_named: bool  # whether the optimizer was created with names
    target_named: bool
    has_stepped: bool  # whether the target has state of its own
    allow: frozenset[str]

    @property
    def is_same_kind(self) -> bool:
        return self.source.partition("(")[0] == self.target.partition("(")[0]

    @property
    def by_position(self) -> bool:
        """Whether only the positions of parameters can be matched, because one side only numbers them."""
        is_alone = self.stored == "alone" and not (self.source_named and self.target_named)
        return is_alone or self.stored == "numbered"

    def matches(self) -> dict[str, str] | None:
        """The parameter of the source for each parameter of the target; None if their groups must be refused."""
        ours, theirs = names_of(self.target_groups), names_of(self.source_groups)
        if not self.by_position:
            return {name: name for name in ours if name in theirs}
        if list(map(len, self.target_groups)) != list(map(len, self.source_groups)):
            return None
        return dict(zip(ours, theirs, strict=True))


def drawn(seed: int, number: int) -> Trial:
    rng = random.Random(f"{seed} {number}")
    kinds = optimizers()
    source = rng.choice(list(kinds))
    cousins = [name for name in kinds if _class_name(name) in _class_name(source) or _class_name(source) in name]
    target = rng.choice(rng.choice([[source], [source], cousins, list(kinds)]))
    stored = rng.choice(list(STORED))
    source_groups = drawn_groups(rng, source, "torch.Muon" in (source, target))
    turned = [rng.sample(group, len(group)) for group in rng.sample(source_groups, len(source_groups))]
    other = drawn_groups(rng, target, "torch.Muon" in (source, target))
    target_groups = rng.choice([source_groups, source_groups, turned, other, other])
    place = "plain" if stored == "alone" else rng.choice(["plain", "plain", "lazy", "meta"])
    named = [rng.random() < 0.3, rng.random() < 0.3]
    named[0] = {"numbered": False, "named": True}.get(stored, named[0])
    has_stepped = place == "plain" and rng.random() < 0.4
    allow = frozenset({"missing", "unexpected"} if rng.random() < 0.3 else ())
    return Trial(source, target, stored, place, source_groups, target_groups, *named, has_stepped, allow)


def drawn_groups(rng: random.Random, kind: str, are_matrices: bool) -> Groups:
    """One to three groups, often in another order, sometimes without one of the parameters."""
    names = [name for name in NAMES if name.endswith("weight") or not are_matrices]
    if rng.random() < 0.4:
        rng.shuffle(names)
    if rng.random() < 0.25:
        names.remove(rng.choice(names))
    cuts = sorted(rng.sample(range(1, len(names)), 0 if "LBFGS" in kind else rng.randrange(3)))
    return [names[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(names)])]


_VARIANTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {"amsgrad": True},
    "AdamW": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
}
_TIMM = "AdamP Adafactor Adan Adopt Lamb LaProp Lars Lion MADGRAD Muon NAdamW NvNovoGrad RMSpropTF SGDP"
_PYTORCH_OPTIMIZER = "AdaBelief AdaFactor AdamP Adan CAME Lamb LaProp Lion MADGRAD NovoGrad Prodigy RAdam SGDP Tiger"


@cache
def optimizers() -> dict[str, Make]:
    """Makes an optimizer of each kind from a list of groups."""
    timm, library = import_timm().optim, import_module("pytorch_optimizer")
    kinds: dict[str, Make] = {}
    for name, cls in vars(torch.optim).items():
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam"):
            kinds[f"torch.{name}"] = cls
            if options := _VARIANTS.get(name):
                kinds[f"torch.{name}({', '.join(options)})"] = partial(cls, **options)
    kinds |= {f"timm.{name}": partial(getattr(timm, name), lr=1e-3) for name in _TIMM.split()}
    names = _PYTORCH_OPTIMIZER.split()
    kinds |= {f"pytorch_optimizer.{name}": partial(getattr(library, name), lr=1e-3) for name in names}
    kinds["timm.Lookahead"] = lambda groups: timm.Lookahead(torch.optim.AdamW(groups))
    kinds["pytorch_optimizer.Lookahead"] = lambda groups: library.Lookahead(torch.optim.AdamW(groups))
    return kinds


def _class_name(kind: str) -> str:
    return kind.partition("(")[0].rpartition(".")[2]


def made(kind: str, groups: Groups, place: str, named: bool, by: int) -> Run:
    """A model and its optimizer, whose groups have different options. `by` is different for source and target."""
    layer = nn.LazyLinear if place == "lazy" else partial(nn.Linear, 4)
    with torch.device("meta" if place == "meta" else "cpu"):
        model = Model(layer)
    held = dict(model.named_parameters())
    listed = [{"params": [(name, held[name]) if named else held[name] for name in group]} for group in groups]
    optimizer = optimizers()[kind](listed)
    for number, group in enumerate(optimizer.param_groups):
        for key in {"lr", "weight_decay"} & group.keys():
            group[key] = (group[key] or 0.01) * (1 + number / 8 + by)
    return Run(model, optimizer)


# -- trials ----------------------------------------------------------------------------------------------------


def outcome(trial: Trial, folder: Path) -> Outcome:
    with torch.compiler.set_stance("force_eager"):  # some compile their steps, which not every machine can do
        try:
            torch.manual_seed(0)
            source = made(trial.source, trial.source_groups, "plain", trial.source_named, 0)
            source.step(1)
            source.step(2)
            target = made(trial.target, trial.target_groups, trial.place, trial.target_named, 1)
            if trial.has_stepped:
                target.step(3)
            where = None if trial.stored in ("both", "alone", "folder") else stored(trial, source, folder)
        except Exception as error:
            return Outcome("impossible", f"{type(error).__name__}: {error}")
        before = target.values(), target.states(), target.options()
        try:
            where = stored(trial, source, folder) if where is None else where
            things = {"model": target.model, "optimizer": target.optimizer}
            lw.load(target.optimizer if trial.stored == "alone" else things, where, allow=trial.allow)
        except lw.Error as error:
            if not same(before, (target.values(), target.states(), target.options())):
                return Outcome("wrong", f"changed, although refused: {error}")
            return Outcome("refused needlessly" if _must_load(trial, source) else "refused", str(error))
        except Exception:
            return Outcome("crashed", traceback.format_exc(limit=-3))
        why = next(_problems(trial, source, target, before[1], before[2]), "")
        return Outcome("wrong" if why else "exact", why)


def stored(trial: Trial, run: Run, folder: Path) -> Any:
    """Something that `lw.load` can load."""
    things: dict[str, Any] = {"model": run.model, "optimizer": run.optimizer}
    match trial.stored:
        case "live":
            return things
        case "both" | "alone":
            return lw.save(things if trial.stored == "both" else run.optimizer, folder / "a.safetensors")
        case "folder":
            return lw.save(things, folder / "run", format="dcp")
        case "numbered" | "named":
            torch.save({name: thing.state_dict() for name, thing in things.items()}, folder / "a.pt")
            return folder / "a.pt"
        case _:
            options = StateDictOptions(flatten_optimizer_state_dict=trial.stored == "flattened")
            state = get_optimizer_state_dict(run.model, run.optimizer, options=options)
            both = {"model": run.model.state_dict(), "optimizer": state}
            dcp.save(both, checkpoint_id=folder / "dcp", no_dist=True)
            return folder / "dcp"


def _must_load(trial: Trial, source: Run) -> bool:
    """Whether there is no reason to refuse: the same kind of optimizer, for the same parameters."""
    matches, theirs = trial.matches(), names_of(trial.source_groups)
    if trial.source != trial.target or matches is None or set(matches.values()) != set(theirs):
        return False
    if len(matches) != len(names_of(trial.target_groups)) or any(a[-6:] != b[-6:] for a, b in matches.items()):
        return False  # a parameter is missing, or a matrix is numbered as a vector
    if trial.source_groups == trial.target_groups:
        return (
            trial.stored not in ("dcp", "flattened") or "Lookahead" not in trial.source
        )  # which has its own state dict
    if "Lookahead" in trial.source or "LBFGS" in trial.source:
        return False  # they know their parameters by their order
    number = {name: number for number, group in enumerate(trial.source_groups) for name in group}
    options = source.options()
    return trial.stored != "flattened" or all(
        same(options[number[name]], options[number[group[0]]]) for group in trial.target_groups for name in group
    )


def _problems(trial: Trial, source: Run, target: Run, states: dict[str, Any], options: list[Any]) -> Iterator[str]:
    """What is wrong after a load. `states` and `options` are those that the target had before."""
    matches = trial.matches()
    theirs, ours = source.states(), target.states()
    if "missing" in trial.allow and same((states, options), (ours, target.options())):
        return  # only the model was loaded
    if not _is_known(trial, source, target):
        keys = sorted({key for state in ours.values() for key in state})
        yield f"{trial.source} was loaded into {trial.target}, whose state now has {', '.join(map(str, keys))}"
    if matches is None:
        yield "numbered state was loaded into groups of other sizes"
        return
    held = dict(target.model.named_parameters())
    for number, names in enumerate(trial.target_groups):
        stepped = target.optimizer.param_groups[number]["params"]
        if list(map(id, stepped)) != [id(held[name]) for name in names]:
            yield f"group {number} has parameters that are not those of the model"
    for name in ours:
        if not same(ours[name], theirs[matches[name]] if name in matches else states[name]):
            yield f"the state of {name} is not that of {matches.get(name, 'before')}: {ours[name]}"
    if trial.stored != "alone" and not same(target.values(), source.values()):
        yield "the values of the model are not those of the source"
    yield from _problems_of_options(trial, matches, source.options(), target.options(), options)
    same_groups = list(map(set, trial.source_groups)) == list(map(set, trial.target_groups))
    goes_on = trial.is_same_kind and same_groups and not trial.by_position
    left_on_meta = trial.place == "meta" and len(matches) < len(names_of(trial.target_groups))
    if (trial.is_same_kind or {trial.source, trial.target} <= _ONE_KIND) and not left_on_meta:
        yield from _problems_of_steps(source, target, theirs, goes_on)


def _problems_of_options(
    trial: Trial, matches: dict[str, str], theirs: list[Any], ours: list[Any], before: list[Any]
) -> Iterator[str]:
    ignored = () if trial.is_same_kind else ("decoupled_weight_decay",)
    for number, found in enumerate(ours):
        wanted = _options(trial, matches, trial.target_groups[number], theirs) or before[number]
        for key in wanted.keys() | (found.keys() if trial.is_same_kind else ()):
            if key not in ignored and not same(found.get(key), wanted.get(key)):
                yield f"option {key} of group {number} is {found.get(key)} instead of {wanted.get(key)}"


def _options(trial: Trial, matches: dict[str, str], names: list[str], options: list[Any]) -> Any:
    """The options of the source that a group of the target must have; None if it keeps its own."""
    matched = [matches.get(name) for name in names]
    found = [number for number, group in enumerate(trial.source_groups) if set(group) == set(matched)]
    if trial.stored == "flattened" and None not in matched:  # each parameter has options
        found = [number for number, group in enumerate(trial.source_groups) if matched[0] in group]
    return options[found[0]] if found else None


def _is_known(trial: Trial, source: Run, target: Run) -> bool:
    """Whether the target may have the state of the source: it is of the same kind, or nothing in the source shows that
    it is not."""
    if trial.is_same_kind or {trial.source, trial.target} <= _ONE_KIND:
        return True
    fresh = made(trial.target, trial.target_groups, "plain", False, 1)
    fresh.step(1)
    keys = [{key for state in run.states().values() for key in state} for run in (source, fresh)]
    options = [set(run.options()[0]) for run in (source, fresh)]
    # Further options and state may be those of a program that keeps more there.
    # What state an optimizer of another library keeps is known when it has stepped.
    is_open = not trial.has_stepped and not trial.target.startswith("torch.")
    fits = (keys[0] >= keys[1] - {"max_exp_avg_sq"} or is_open) and (
        options[0] >= options[1] or options[0] <= options[1]
    )
    return trial.stored not in ("both", "alone", "live") and fits


_ONE_KIND = {f"torch.{name}{options}" for name in ("Adam", "AdamW") for options in ("", "(amsgrad)")}


def _problems_of_steps(source: Run, target: Run, states: dict[str, Any], goes_on: bool) -> Iterator[str]:
    """What is wrong when the optimizers go on. `goes_on`: whether both must have the same results."""
    if goes_on:
        target.model.load_state_dict(source.model.state_dict())
    before = target.values()
    try:
        target.step(4)
    except Exception as error:
        yield f"it cannot step: {type(error).__name__}: {error}"
        return
    after = target.values()
    stepped = {name for name in target.states() if target.model.get_parameter(name).requires_grad}
    # Some optimizers of other libraries begin with steps that are too small to change a number.
    unchanged = [name for name in stepped if same(before[name], after[name])]
    if unchanged and type(target.optimizer).__module__.startswith("torch."):
        yield f"a step does not change {', '.join(sorted(unchanged))}"
    if not same(source.states(), states):
        yield "a step of the target changes the state of the source"
    if goes_on:
        source.step(4)
        pairs = [(name, value, after[name]) for name, value in source.values().items()]
        if differing := [name for name, a, b in pairs if not torch.allclose(a, b, rtol=1e-4, atol=1e-7)]:
            yield f"the next step has other results than that of the source: {', '.join(differing)}"


def same(a: Any, b: Any) -> bool:
    """Whether values have the same types and bits; tensors on meta have none."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return False
        bits = [one.detach().reshape(-1).view(torch.uint8) for one in (a, b)]
        return a.is_meta or torch.equal(*bits)
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


# -- the table -------------------------------------------------------------------------------------------------


def table(found: list[tuple[Trial, Outcome]]) -> str:
    lines = ["| the source | " + " | ".join(KINDS) + " |", "|---|" + "--:|" * len(KINDS)]
    for stored_as, shown in STORED.items():
        counts = [sum(trial.stored == stored_as and one.kind == kind for trial, one in found) for kind in KINDS]
        lines.append(f"| {shown} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = sweeps.parser(__doc__, "trials, by number")
    parser.add_argument("--trials", type=int, default=TRIALS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[tuple[Trial, Outcome]] = []
    for number in map(int, options.only or range(options.trials)):
        trial = drawn(options.seed, number)
        with tempfile.TemporaryDirectory() as folder:
            one = outcome(trial, Path(folder))
        found.append((trial, one))
        if options.only or one.kind not in ("exact", "refused", "impossible"):
            print(f"\n{one.kind}: python -m tools.optimizer_groups --seed {options.seed} {number}")
            print(f"  {trial}\n  {one.why}", flush=True)
    print(table(found))
    if not options.only:
        sweeps.record("make groups", {"optimizer groups": table(found)}, options.seed)
    return 1 if any(one.kind in ("wrong", "crashed") for _, one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
