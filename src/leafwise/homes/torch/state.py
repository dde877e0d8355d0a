"""Modules that write or read their state dict in ways of their own.

What such a module saves beyond parameters and buffers is part of the tree, and is handed back to it by the method that
it reads it with. Where it saves other values than it holds, nobody else can know which are meant, and it is refused.
"""

from functools import cache
from typing import Any

import torch
from torch import nn

from leafwise.core.path import escape

EXTRA = "_extra_state"  # what PyTorch calls what a module saves besides parameters and buffers
# Methods that say nothing new: PyTorch's own, those of wrappers that pass on what they wrap, and those of packed
# layers, whose values are refused one by one.
_KNOWN = (
    "torch.nn.modules.",
    "torch.nn.parallel.",
    "torch._dynamo.",
    "torch.jit.",
    "torch.distributed.",
    "torch.ao.",
    "lightning.fabric.",
    "lightning_fabric.",
    "deepspeed.",
    "bitsandbytes.",
    "leafwise.",
)


def writes_its_own(cls: Any) -> bool:
    """Whether modules of a class have a say in what their state dict holds."""
    return _is_overridden(cls, "_save_to_state_dict") or _is_overridden(cls, "state_dict")


def _reads_its_own(cls: Any) -> bool:
    return _is_overridden(cls, "_load_from_state_dict") or _is_overridden(cls, "load_state_dict")


@cache
def has_extra_state(cls: Any) -> bool:
    return issubclass(cls, nn.Module) and cls.get_extra_state is not nn.Module.get_extra_state


@cache
def _is_overridden(cls: Any, name: str) -> bool:
    method = getattr(cls, name)
    where = getattr(method, "__module__", None) or ""
    return method is not getattr(nn.Module, name) and not where.startswith(_KNOWN)


def extras(module: nn.Module) -> dict[str, Any]:
    """What a module's own part of its state dict holds beyond its parameters, its buffers and its extra state."""
    found = {}
    for key, value in module.state_dict(keep_vars=True).items():
        first = key.partition(".")[0]
        if first not in module._modules and key not in module._parameters and key not in module._buffers:
            if key != EXTRA:
                found[key] = value
    return found


def has_hooks(module: nn.Module, *names: str) -> bool:
    """Whether somebody hooked into a module. Hooks of PyTorch and of leafwise, which keep ties, do not count; those of
    FSDP must not even be called by one process alone."""
    for name in names:
        for hook in held.values() if (held := vars(module).get(name)) else ():
            hook = getattr(hook, "hook", hook)
            where = getattr(hook, "__module__", None) or type(hook).__module__
            if not where.startswith((*_KNOWN, "torch.nn.utils.")):
                return True
    return False


def differs(module: nn.Module) -> str:
    """What the state dict of a module says otherwise than the module and those below it."""
    name = type(module).__name__
    held = {**_named(module.named_parameters), **_named(module.named_buffers)}
    more = []
    for key, value in module.state_dict(keep_vars=True).items():
        if key in held:
            if not _is_same(value, held[key]):
                return (
                    f"the state_dict() of {name} holds another {key} than the module does, and leafwise cannot tell "
                    "which is meant; save model.state_dict(), and load with model.load_state_dict()"
                )
        elif not _is_listed(module, key):
            more.append(key)
    if more:
        return (
            f"the state_dict() of {name} also holds {', '.join(more[:3])}, which {name} adds to it by a hook, or for a "
            "module below it; save model.state_dict(), and load with model.load_state_dict()"
        )
    return ""


def _named(names: Any) -> dict[str, torch.Tensor]:
    return dict(names(remove_duplicate=False))


def _is_listed(module: nn.Module, key: str) -> bool:
    """Whether the walk lists what the state dict of a module has under a key: as what the module that it belongs to
    writes by itself."""
    first, dot, rest = key.partition(".")
    if dot and module._modules.get(first) is not None:
        return _is_listed(module._modules[first], rest)  # type: ignore[arg-type]
    return key == EXTRA or (writes_its_own(type(module)) and key in extras(module))


def _is_same(one: Any, other: torch.Tensor) -> bool:
    """Whether a state dict holds a tensor itself. One that was computed may be equal now, and not the next time."""
    if one is other:
        return True
    if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_meta or other.is_meta:
        return one.is_meta == other.is_meta
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def give_back(module: nn.Module, state: dict[str, Any]) -> None:
    """Hands a module what it saved beyond parameters and buffers, by the method that it reads it with."""
    _read(module, {**module.state_dict(), **state})


def run_load_hooks(objects: list[Any]) -> None:
    """Has modules that read state dicts in ways of their own do so, with what they now hold."""
    own = {kind for kind in set(map(type, objects)) if issubclass(kind, nn.Module) and _reads_its_own(kind)}
    names = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
    for module in objects:
        if type(module) in own or (isinstance(module, nn.Module) and has_hooks(module, *names)):
            _read(module, module.state_dict())


def _read(module: nn.Module, state: dict[str, Any]) -> None:
    cls: Any = type(module)
    if _is_overridden(cls, "load_state_dict"):
        module.load_state_dict(state)
        return
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    with torch.no_grad():
        module._load_from_state_dict(state, "", {"version": module._version}, True, missing, unexpected, errors)
    keys = torch.nn.modules.module._IncompatibleKeys(missing, unexpected)
    for hook in module._load_state_dict_post_hooks.values():
        hook(module, keys)
    errors += [f"{key} is missing" for key in keys.missing_keys]
    errors += [f"{key} is unexpected" for key in keys.unexpected_keys]
    if errors:
        raise RuntimeError(escape(f"{type(module).__name__} does not take what it holds: {'; '.join(errors[:3])}"))
