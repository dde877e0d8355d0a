"""Saves and resumes a run with every optimizer of PyTorch, timm and pytorch_optimizer that works with its defaults.

A run of a few steps is saved with `lw.save` and loaded into a fresh model and optimizer, and both continue for a few
steps with the same batches. The parameters must then be equal, bit for bit, unless `lw.save` refused the run. The same
is tried with only `state_dict()` and `load_state_dict()`, for comparison.

    python -m tools.optimizers              every optimizer, and records the table (minutes)
    python -m tools.optimizers timm.lamb    some of them
"""

import copy
import inspect
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tools import sweeps
from tools.with_timm import import_timm
from torch import nn

import leafwise as lw

BEFORE, AFTER = 4, 4  # steps before the save, and after it
Make = Callable[[nn.Module], Any]


class Case(NamedTuple):
    library: str
    name: str
    make: Make


class Outcome(NamedTuple):
    """`kind`: exact, refused, wrong, or cannot run; `native`: whether the state dicts alone resume exactly."""

    kind: str
    native: bool | None
    why: str = ""


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Linear(8, 3))


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def steps(model: nn.Module, optimizer: Any, numbers: range) -> None:
    """Runs training steps as a user of the optimizer would."""
    if hasattr(optimizer, "train"):  # schedule-free optimizers must be switched to training mode
        optimizer.train()
    for number in numbers:
        random.seed(number)
        torch.manual_seed(number)
        x, y = batch(number)

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward(create_graph=_needs_graph(optimizer))
            return loss

        _step(optimizer, closure)


def _needs_graph(optimizer: Any) -> bool:
    return type(optimizer).__name__ in ("AdaHessian", "Adahessian", "SophiaH")


def _step(optimizer: Any, closure: Callable[[], torch.Tensor]) -> None:
    loss = closure()
    if type(optimizer).__name__ == "AliG":
        optimizer.step(lambda: loss.detach())
    elif type(optimizer).__name__ in ("LBFGS", "SAM", "GSAM", "WSAM", "BSAM", "LookSAM", "FriendlySAM"):
        optimizer.step(closure)
    else:
        optimizer.step()


# -- the optimizers ------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    yield from _of_torch()
    yield from _of_timm()
    yield from _of_pytorch_optimizer()


def _of_torch() -> Iterator[Case]:
    for name, cls in vars(torch.optim).items():
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer:
            yield Case("torch", name, _maker(cls))


def _of_timm() -> Iterator[Case]:
    optim = import_timm().optim
    for name in optim.list_optimizers():
        yield Case("timm", name, lambda model, name=name: optim.create_optimizer_v2(model, opt=name, lr=1e-3))
    yield Case(
        "timm", "lookahead_adamw", lambda model: optim.create_optimizer_v2(model, opt="lookahead_adamw", lr=1e-3)
    )


def _of_pytorch_optimizer() -> Iterator[Case]:
    library = import_module("pytorch_optimizer")
    for name in sorted(library.get_supported_optimizers()):
        yield Case("pytorch_optimizer", name, _maker(library.load_optimizer(name)))
    base = library.AdamP
    wrappers: dict[str, Make] = {
        "Lookahead(AdamP)": lambda model: library.Lookahead(base(model.parameters())),
        "OrthoGrad(AdamP)": lambda model: library.OrthoGrad(base(model.parameters())),
        "ScheduleFreeWrapper(AdamP)": lambda model: library.ScheduleFreeWrapper(base(model.parameters())),
        "PCGrad(AdamP)": lambda model: library.PCGrad(base(model.parameters())),
        "TRAC(AdamP)": lambda model: library.TRAC(base(model.parameters())),
        "SAM(AdamP)": lambda model: library.SAM(model.parameters(), base),
    }
    for name, make in wrappers.items():
        yield Case("pytorch_optimizer", name, make)


def _maker(cls: type) -> Make:
    def make(model: nn.Module) -> Any:
        name, parameters = cls.__name__.lower(), inspect.signature(cls).parameters
        options = {key: value for key, value in _NEEDED.items() if key in parameters and _is_needed(parameters[key])}
        if name == "sgd":
            options["lr"] = 1e-3
        matrices = [value for value in model.parameters() if value.dim() == 2]
        if name == "spectralsphere" or (name == "muon" and cls.__module__.startswith("torch.")):
            model.requires_grad_(False)
            for value in matrices:
                value.requires_grad_(True)
            return cls(matrices, **options)
        if next(iter(parameters)) == "model":
            return cls(model, **options)
        if not cls.__module__.startswith("torch.") and "use_muon" in inspect.getsource(cls):
            others = [value for value in model.parameters() if value.dim() != 2]
            return cls([{"params": matrices, "use_muon": True}, {"params": others, "use_muon": False}], **options)
        return cls(model.parameters(), **options)

    return make


_NEEDED = {"num_iterations": 100, "num_data": 8, "lr": 1e-3}  # arguments that some optimizers require


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


# -- resuming --------------------------------------------------------------------------------------------------


def outcome(case: Case, folder: Path, seed: int = 0) -> Outcome:
    """Resumes a run. The seed chooses the initial values and the batches."""
    with torch.compiler.set_stance("force_eager"):  # some compile their steps, which not every machine can do
        return _outcome(case, folder, seed)


def _outcome(case: Case, folder: Path, seed: int) -> Outcome:
    torch.manual_seed(seed)
    try:
        model = build()
        optimizer = case.make(model)
        steps(model, optimizer, range(seed, seed + BEFORE))
    except Exception as error:
        return Outcome("cannot run", None, f"{type(error).__name__}: {error}".splitlines()[0])
    native = _native(case, seed)
    path = folder / f"{case.name}.safetensors"
    try:
        lw.save({"model": model, "optimizer": optimizer}, path)
    except lw.Error as error:
        return Outcome("refused", native, str(error).splitlines()[0])
    torch.manual_seed(seed + 1)
    fresh = build()
    other = case.make(fresh)
    try:
        lw.load({"model": fresh, "optimizer": other}, path)
    except lw.Error as error:
        return Outcome("refused at load", native, " | ".join(str(error).splitlines()[:3]))
    try:
        return Outcome(*_went_on(model, optimizer, fresh, other, seed, native))
    except Exception as error:
        return Outcome("wrong", native, f"after the load: {type(error).__name__}: {error}".splitlines()[0])


def _went_on(
    model: nn.Module, optimizer: Any, fresh: nn.Module, other: Any, seed: int, native: bool | None
) -> tuple[Any, ...]:
    numbers = range(seed + BEFORE, seed + BEFORE + AFTER)
    steps(model, optimizer, numbers)
    steps(fresh, other, numbers)
    pairs = zip(model.named_parameters(), fresh.parameters(), strict=True)
    differing = [name for (name, one), two in pairs if not torch.equal(one.view(torch.int32), two.view(torch.int32))]
    return ("wrong", native, f"differs in {', '.join(differing)}") if differing else ("exact", native)


def _native(case: Case, seed: int) -> bool | None:
    """Whether the state dicts alone resume exactly; None if loading them fails."""
    torch.manual_seed(seed)
    model = build()
    optimizer = case.make(model)
    steps(model, optimizer, range(seed, seed + BEFORE))
    torch.manual_seed(seed + 1)
    fresh = build()
    other = case.make(fresh)
    try:
        fresh.load_state_dict(copy.deepcopy(model.state_dict()))
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        return bool(_went_on(model, optimizer, fresh, other, seed, None)[0] == "exact")
    except Exception:
        return None


_KINDS = ("exact", "refused", "wrong", "refused at load", "cannot run")


def table(found: list[tuple[Case, Outcome]]) -> str:
    """The counts for each library, and the optimizers that are not exact."""
    libraries = dict.fromkeys(case.library for case, _ in found)
    lines = [
        "| | exact | refused by `lw.save` | wrong | refused by `lw.load` | cannot run here |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for library in libraries:
        counts = [sum(case.library == library and one.kind == kind for case, one in found) for kind in _KINDS]
        lines.append(f"| {library} {_version(library)} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "| refused by `lw.save` | because |", "|---|---|"]
    lines += [
        f"| {case.library} `{case.name}` | {_shortened(one.why)} |" for case, one in found if one.kind == "refused"
    ]
    others = [f"`{case.name}`" for case, one in found if one.kind == "cannot run" and "CUDA" not in one.why]
    gpu = sum(one.kind == "cannot run" and "CUDA" in one.why for _, one in found)
    lines += [
        "",
        f"Cannot run here: {gpu} optimizers of timm, which need a GPU, and {', '.join(others)}, which need sparse",
    ]
    lines += ["gradients, several processes, or a different kind of step."]
    return "\n".join(lines)


def _version(library: str) -> str:
    return metadata.version(library).partition("+")[0]


def _shortened(why: str) -> str:
    what = why.partition(": ")[2].partition("; ")[0]  # without what to do about it
    where = why.partition(":")[0].rpartition(".")[2]
    return what.replace("leafwise does not save", f"`{where}` is or contains a")


def main() -> int:
    options = sweeps.parser(__doc__, "optimizers, by a part of their names").parse_args()
    warnings.simplefilter("ignore")
    found: list[tuple[Case, Outcome]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            if options.only and not any(part in f"{case.library}.{case.name}" for part in options.only):
                continue
            one = outcome(case, Path(folder), options.seed)
            found.append((case, one))
            if one.kind != "exact" or one.native is not True:
                native = {True: "exact", False: "different", None: "fails"}[one.native]
                print(f"{case.library:18} {case.name:28} {one.kind:15} alone {native:10} {one.why[:170]}", flush=True)
    print(table(found))
    if not options.only:
        sweeps.record("make optimizers", {"optimizers": table(found)}, options.seed)
    return 1 if any(one.kind in ("wrong", "refused at load") for _, one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
