"""Counts false alarms of `lw.check` on healthy models, and how many planted faults it finds.

    python -m tools.alarms            layers, trained models and every architecture of transformers; records the tables
    python -m tools.alarms bert t5    only some architectures

The exit status is 1 if there was a false alarm or a fault was not found.
"""

import copy
import datetime
import os
import tempfile
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tools import sweeps
from tools.architectures import names
from tools.healthy_models import Healthy, architecture, layers, trained
from torch import nn

import leafwise as lw
from leafwise.inspect.check.evidence import place_in_layer
from leafwise.inspect.check.rules.registry import all_rules

PAGE = Path(__file__).parent.parent / "docs" / "check.md"
START, END = "<!-- sweep alarms -->", "<!-- /sweep alarms -->"


class Planted(NamedTuple):
    """A model with a fault, more arguments for `lw.check`, and the path and the level that the finding should have; ""
    for any."""

    model: Any
    options: dict[str, Any]
    path: str = ""
    level: str = ""


Plant = Callable[[Healthy], Planted | None]
FAULTS: dict[str, Plant] = {}


def fault(code: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        FAULTS[code] = plant
        return plant

    return register


# -- where faults are planted ------------------------------------------------------------------------------------


def _weights(model: nn.Module, least: int = 8, role: str | None = None) -> list[Any]:
    """Weights that map inputs to outputs, or the leaves with a role, whose rows have at least `least` values."""
    found = []
    for leaf in lw.tree(model).select(lw.where(kind="parameter")):
        if leaf.shape is None or leaf.ndim is None or leaf.ndim < 2 or leaf.size < 2 * least or 0 in leaf.shape:
            continue
        axes, roles = leaf.axes or (), {name.role for name in leaf.names}
        fits = "out" in axes and any(one.startswith("in") for one in axes) and "embedding.table" not in roles
        if (roles == {role} if role else fits) and leaf.size // leaf.shape[0] >= least and leaf.shape[0] > 1:
            found.append(leaf)
    return found


def _first(leaves: list[Any]) -> Any:
    return max(leaves, key=lambda leaf: leaf.size, default=None)


def _unit(leaf: Any, number: int) -> Any:
    return leaf.value.select(leaf.axes.index("out") if leaf.axes and "out" in leaf.axes else 0, number)


def _in_weight(change: Callable[[Any], Any], least: int = 8) -> Plant:
    """Plants a fault by changing the largest weight."""

    def plant(healthy: Healthy) -> Planted | None:
        model = copy.deepcopy(healthy.model)
        leaf = _first(_weights(model, least))
        if leaf is None:
            return None
        with torch.no_grad():
            if change(leaf) is False:
                return None
        return Planted(model, {}, str(leaf.path))

    return plant


def _in_one_block(change: Callable[[Any], Any]) -> Plant:
    """Plants a fault by changing the largest trainable weight that is also in another block, where it is not zero."""

    def plant(healthy: Healthy) -> Planted | None:
        model = copy.deepcopy(healthy.model)
        by_place: dict[str, list[Any]] = {}
        for leaf in _weights(model, 16):
            if leaf.trainable and leaf.value.any() and (place := place_in_layer(str(leaf.path))) != str(leaf.path):
                by_place.setdefault(place, []).append(leaf)
        leaf = _first([leaves[-1] for leaves in by_place.values() if len(leaves) > 1])
        if leaf is None:
            return None
        with torch.no_grad():
            change(leaf.value)
        return Planted(model, {}, str(leaf.path), "warning")

    return plant


def _owner(model: nn.Module, path: Any) -> tuple[nn.Module, str]:
    *front, name = str(path).split(".")
    return model.get_submodule(".".join(front)), name


def _with_gradients(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    return model


def _trainable(model: nn.Module) -> list[tuple[str, Any]]:
    lazy = nn.parameter.UninitializedParameter
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not isinstance(parameter, lazy) and parameter.numel()
    ]


def _with_trainable(plant: Callable[[nn.Module, str, Any], Planted | None]) -> Plant:
    """Plants a fault in the last trainable parameter of a copy."""

    def found(healthy: Healthy) -> Planted | None:
        model = copy.deepcopy(healthy.model)
        some = _trainable(model)
        return plant(model, *some[-1]) if len(some) > 1 else None

    return found


# -- the faults --------------------------------------------------------------------------------------------------


@fault("LW101")
@_with_trainable
def _nan(model: nn.Module, name: str, parameter: Any) -> Planted:
    with torch.no_grad():
        parameter.view(-1)[-1] = float("nan")
    return Planted(model, {}, name)


@fault("LW102")
@_with_trainable
def _infinite_gradient(model: nn.Module, name: str, parameter: Any) -> Planted:
    _with_gradients(model)
    parameter.grad.view(-1)[0] = float("inf")
    return Planted(model, {}, name)


fault("LW103")(_in_weight(lambda leaf: leaf.value.zero_(), 2))
fault("LW103 in one block")(_in_one_block(lambda value: value.zero_()))
fault("LW104")(_in_weight(lambda leaf: leaf.value.fill_(0.5), 2))
fault("LW110")(_in_weight(lambda leaf: _unit(leaf, 1).zero_() if leaf.value.any() else False, 2))


@fault("LW111")
def _unused_input(healthy: Healthy) -> Planted | None:
    model = copy.deepcopy(healthy.model)
    leaf = _first([one for one in _weights(model, 2) if {"in", "out"} <= set(one.axes) and min(one.shape[:2]) > 1])
    if leaf is None or not leaf.value.any():
        return None
    with torch.no_grad():
        leaf.value.select(leaf.axes.index("in"), 0).zero_()
    return Planted(model, {}, str(leaf.path))


@fault("LW112")
def _dead_gradient(healthy: Healthy) -> Planted | None:
    model = _with_gradients(copy.deepcopy(healthy.model))
    leaf = _first([one for one in _weights(model, 2) if one.trainable])
    if leaf is None:
        return None
    leaf.grad.select(leaf.axes.index("out"), 1).zero_()
    return Planted(model, {}, str(leaf.path))


fault("LW113")(_in_weight(lambda leaf: leaf.value[1].copy_(leaf.value[0]) if leaf.value[0].any() else False))
fault("LW114")(
    _in_weight(
        lambda leaf: (
            leaf.value[1].copy_(leaf.value[0] * 1.0005)
            if leaf.value.dtype == torch.float32 and leaf.value[0].any()
            else False
        )
    )
)


@fault("LW115")
def _untouched(healthy: Healthy) -> Planted | None:
    model = _with_gradients(copy.deepcopy(healthy.model))
    leaf = _first([one for one in _weights(model, 2, "embedding.table") if one.trainable])
    if leaf is None:
        return None
    owner, _ = _owner(model, leaf.path)
    leaf.grad[2 if getattr(owner, "padding_idx", None) == 1 else 1] = 0
    return Planted(model, {}, str(leaf.path))


@fault("LW116")
def _low_rank(healthy: Healthy) -> Planted | None:
    model = copy.deepcopy(healthy.model)
    leaf = _first([one for one in _weights(model) if min(one.shape[0], one.size // one.shape[0]) >= 64])
    if leaf is None:
        return None
    with torch.no_grad():
        flat = leaf.value.view(leaf.shape[0], -1)
        flat.copy_(torch.randn(flat.shape[0], 2) @ torch.randn(2, flat.shape[1]) * 0.01)
    return Planted(model, {}, str(leaf.path))


fault("LW201")(
    _in_weight(lambda leaf: leaf.value.normal_(std=30.0) if "in" in leaf.axes and leaf.trainable else False, 16)
)


fault("LW201 in one block")(_in_one_block(lambda value: value.mul_(1000)))


@fault("LW202")
def _undeclared(healthy: Healthy) -> Planted | None:
    leaf = _first(_weights(healthy.model, 16))
    if leaf is None or leaf.size < 256:
        return None
    std = float(leaf.value.detach().float().std()) * 1.5 or 1.0
    return Planted(
        healthy.model, {"init": [lw.Rule(str(leaf.path), init="normal", std=std, wins=True)]}, str(leaf.path)
    )


def _pair(model: nn.Module) -> tuple[Any, Any] | None:
    """Two weights of the same shape and dtype that are not tied."""
    shapes: dict[Any, Any] = {}
    for leaf in _weights(model, 2):
        plain = type(leaf.value) is nn.Parameter and len(leaf.names) == 1 and "parametrizations" not in str(leaf.path)
        if plain and leaf.owner not in ("LSTM", "GRU", "RNN", "RNNBase"):
            if (leaf.shape, leaf.dtype) in shapes:
                return shapes[leaf.shape, leaf.dtype], leaf
            shapes[leaf.shape, leaf.dtype] = leaf
    return None


def _tied_then(change: Callable[[Any], Any]) -> Plant:
    """Ties two weights, then replaces the second by another parameter without untying it."""

    def plant(healthy: Healthy) -> Planted | None:
        model = copy.deepcopy(healthy.model)
        pair = _pair(model)
        if pair is None:
            return None
        first, second = (str(leaf.path) for leaf in pair)
        try:
            lw.tie(model, second, to=first, keep="source")
        except lw.TieError:
            return None
        owner, name = _owner(model, second)
        owner._parameters[name] = nn.Parameter(change(owner._parameters[name].detach().clone()))
        return Planted(model, {}, second)

    return plant


fault("LW301")(_tied_then(lambda value: value))
fault("LW302")(_tied_then(lambda value: value.to(torch.float64)))


@fault("LW303")
def _equal(healthy: Healthy) -> Planted | None:
    model = copy.deepcopy(healthy.model)
    pair = _pair(model)
    if pair is None or not pair[0].value.any():
        return None
    with torch.no_grad():
        pair[1].value.copy_(pair[0].value)
    return Planted(model, {})


@fault("LW304")
def _shared_memory(healthy: Healthy) -> Planted | None:
    model = copy.deepcopy(healthy.model)
    pair = _pair(model)
    if pair is None:
        return None
    owner, name = _owner(model, pair[1].path)
    owner._parameters[name] = nn.Parameter(pair[0].value.detach())
    return Planted(model, {}, str(pair[1].path))


@fault("LW401")
@_with_trainable
def _no_gradient(model: nn.Module, name: str, parameter: Any) -> Planted:
    _with_gradients(model)
    parameter.grad = None
    return Planted(model, {}, name)


@fault("LW402")
@_with_trainable
def _frozen_with_gradient(model: nn.Module, name: str, parameter: Any) -> Planted:
    _with_gradients(model)
    parameter.requires_grad_(False)
    return Planted(model, {}, name)


@fault("LW411")
@_with_trainable
def _left_out(model: nn.Module, name: str, parameter: Any) -> Planted:
    rest = [one for one in model.parameters() if one is not parameter]
    return Planted(model, {"optimizer": torch.optim.SGD(rest, 0.1)}, name)


@fault("LW412")
@_with_trainable
def _twice(model: nn.Module, name: str, parameter: Any) -> Planted:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.param_groups[0]["params"].append(parameter)
    return Planted(model, {"optimizer": optimizer}, name)


@fault("LW413")
@_with_trainable
def _frozen_in_optimizer(model: nn.Module, name: str, parameter: Any) -> Planted:
    parameter.requires_grad_(False)
    return Planted(model, {"optimizer": torch.optim.SGD(model.parameters(), 0.1)}, name)


@fault("LW414")
def _stale(healthy: Healthy) -> Planted | None:
    model = copy.deepcopy(healthy.model)
    leaf = _first([one for one in _weights(model, 2) if len(one.names) == 1 and type(one.value) is nn.Parameter])
    if leaf is None or "parametrizations" in str(leaf.path):
        return None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    owner, name = _owner(model, leaf.path)
    owner._parameters[name] = nn.Parameter(leaf.value.detach().clone())
    return Planted(model, {"optimizer": optimizer})


fault("LW501")(_in_weight(lambda leaf: _unit(leaf, 0).fill_(1e6) if leaf.value.dtype != torch.float16 else False))
fault("LW502")(_in_weight(lambda leaf: leaf.value.normal_(std=1e-8)))
fault("LW503")(_in_weight(lambda leaf: leaf.value.normal_(std=1e-4)))


@fault("LW511")
def _mixed(healthy: Healthy) -> Planted | None:
    model = copy.deepcopy(healthy.model)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.LayerNorm) and module.bias is not None:
            lazy = isinstance(module, nn.modules.lazy.LazyModuleMixin)
            if not lazy and isinstance(module._parameters.get("weight"), nn.Parameter):
                module.bias = nn.Parameter(module.bias.detach().to(torch.float64))
                return Planted(model, {})
    return None


@fault("LW512")
def _lazy(healthy: Healthy) -> Planted:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Planted(nn.ModuleDict({"old": copy.deepcopy(healthy.model), "new": nn.LazyLinear(4)}), {}, "new.weight")


@fault("LW601")
@_with_trainable
def _unchanged(model: nn.Module, name: str, parameter: Any) -> Planted:
    before = copy.deepcopy(model)
    with torch.no_grad():
        for other in model.parameters():
            other.add_(1 if other.is_floating_point() and other is not parameter else 0)
    return Planted(model, {"against": before}, name)


@fault("LW602")
@_with_trainable
def _frozen_changed(model: nn.Module, name: str, parameter: Any) -> Planted:
    before = copy.deepcopy(model)
    parameter.requires_grad_(False)
    with torch.no_grad():
        parameter.add_(1)
    return Planted(model, {"against": before}, name)


class _Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.called = function, args

    def __reduce__(self) -> Any:
        return self.called


def _in_file(code: str, extra: Any) -> None:
    """Plants an object in a checkpoint of the model."""

    @fault(code)
    def plant(healthy: Healthy) -> Planted:
        path = Path(tempfile.gettempdir()) / f"leafwise-alarms-{os.getpid()}.pt"
        torch.save({"model": healthy.model.state_dict(), "extra": {"object": extra}}, path)
        return Planted(path, {}, "extra.object")


_in_file("LW701", _Calls(os.system, "true"))
_in_file("LW702", _Calls(textwrap.dedent, "1"))
_in_file("LW703", datetime.date(2026, 1, 31))


# -- the tables --------------------------------------------------------------------------------------------------


def alarms(models: Iterable[Healthy]) -> Iterator[tuple[Healthy, lw.Error | Any]]:
    """Each healthy model with its findings."""
    for healthy in models:
        options = {} if healthy.before is None else {"against": healthy.before}
        yield healthy, lw.check(healthy.model, healthy.optimizer, **options)


def outcome(healthy: Healthy, code: str) -> bool | None:
    """Whether a planted fault is found; None if it cannot be planted in this model."""
    if any(isinstance(one, nn.parameter.UninitializedParameter) for one in healthy.model.parameters()):
        return None  # such a model cannot be copied
    planted = FAULTS[code](healthy)
    if planted is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.TieWarning)
        code = code.partition(" ")[0]
        found = lw.check(planted.model, **{"select": code, **planted.options}).of(code)
    return any(planted.path in ("", one.path) and planted.level in ("", one.level) for one in found)


class Tally(NamedTuple):
    """What was found in some healthy models, and in copies of them with planted faults."""

    models: int
    leaves: int
    levels: Counter[str]
    planted: Counter[str]
    found: Counter[str]
    wrong: list[str]


def tally(models: Iterable[Healthy]) -> Tally:
    """Checks models, and plants every fault in each; of the variants of an architecture, only in the fresh one."""
    count = leaves = 0
    levels, planted, found = Counter[str](), Counter[str](), Counter[str]()
    wrong = []
    for healthy, findings in alarms(models):
        count, leaves = count + 1, leaves + findings.checked
        levels.update(one.level for one in findings)
        wrong += [f"{healthy.name}: {one}" for one in (*findings.errors, *findings.warnings)]
        for code in () if healthy.name.endswith((", bfloat16", ", stepped")) else FAULTS:
            if (result := outcome(healthy, code)) is not None:
                planted[code] += 1
                found[code] += result
                wrong += [] if result else [f"{healthy.name}: {code} not found"]
    return Tally(count, leaves, levels, planted, found, wrong)


def architecture_tally(name: str, seed: int | None = None) -> Tally:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tally(architecture(name, seed))


def _total(tallies: Sequence[Tally]) -> Tally:
    counters = [sum((one[place] for one in tallies), Counter[str]()) for place in (2, 3, 4)]
    count, leaves = sum(one.models for one in tallies), sum(one.leaves for one in tallies)
    return Tally(count, leaves, *counters, [line for one in tallies for line in one.wrong])


def table(tallies: dict[str, Tally], architectures: int) -> str:
    import transformers

    lines = ["| healthy models | models | leaves | errors | warnings | notes |", "|---|---|---|---|---|---|"]
    for kind, one in tallies.items():
        counts = [one.models, one.leaves, one.levels["error"], one.levels["warning"], one.levels["note"]]
        lines.append(f"| {kind} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    lines += ["", "| rule | planted in | found in |", "|---|---|---|"]
    names = {code: one.name for code, one in all_rules().items()}
    whole = _total([*tallies.values()])
    for fault_name in sorted(FAULTS):
        code, _, where = fault_name.partition(" ")
        counts = f"{whole.planted[fault_name]:,} | {whole.found[fault_name]:,}"
        lines.append(f"| `{code}` {names[code]}{f' {where}' if where else ''} | {counts} |")
    lines += [
        "",
        f"{architectures} architectures of transformers {transformers.__version__}, three variants each; faults were "
        f"planted in the fresh ones. torch {torch.__version__.partition('+')[0]}.",
    ]
    return "\n".join(lines)


def main() -> int:
    options = sweeps.parser(__doc__, "architectures").parse_args()
    warnings.simplefilter("ignore")
    sweeps.be_quiet()
    work = partial(architecture_tally, seed=options.seed)
    each = [one for one in sweeps.in_processes(work, options.only or names(), "architectures") if one.models]
    tallies = {
        "fresh layers of every type of `torch.nn`": tally(layers(options.seed)),
        "trained small models": tally(trained(seed=options.seed)),
        "architectures of transformers": _total(each),
    }
    print(table(tallies, len(each)))
    wrong = _total([*tallies.values()]).wrong
    for one in wrong:
        print("WRONG", one)
    if not options.only:
        sweeps.record("make alarms", {"alarms": table(tallies, len(each))}, options.seed)
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
