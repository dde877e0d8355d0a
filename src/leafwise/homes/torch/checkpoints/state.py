"""Modules that write or read their state dict in their own way.

Values that such a module saves besides parameters and buffers are part of the tree, and are loaded by the module's own
method. A module that saves values other than its own is refused, because leafwise cannot know which ones to use.
"""

from functools import cache
from typing import Any

import torch
from torch import nn

from leafwise.core.path import escape
from leafwise.homes.torch.values.tensor_values import same_memory

EXTRA = "_extra_state"  # PyTorch's key for the result of `get_extra_state`
# Methods of these packages do not count as a module's own: PyTorch itself, wrappers that only delegate, and packed
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
    """Whether modules of a class have their own method to write their state dict."""
    return _is_overridden(cls, "_save_to_state_dict") or _is_overridden(cls, "state_dict")


def reads_its_own(cls: Any) -> bool:
    """Whether modules of a class have their own method to read state dicts."""
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
    """The module's own part of its state dict, without its parameters, buffers and extra state."""
    own = {*module._parameters, *module._buffers, EXTRA}
    state = module.state_dict(keep_vars=True)
    return {
        key: value for key, value in state.items() if key not in own and key.partition(".")[0] not in module._modules
    }


def has_hooks(module: nn.Module, *names: str) -> bool:
    """Whether a module has hooks of these kinds. Hooks of PyTorch do not count, nor do hooks of leafwise, which keep
    ties; hooks of FSDP must not be called by one process alone."""
    for name in names:
        for hook in hooks.values() if (hooks := vars(module).get(name)) else ():
            hook = getattr(hook, "hook", hook)
            where = getattr(hook, "__module__", None) or type(hook).__module__
            if not where.startswith((*_KNOWN, "torch.nn.utils.")):
                return True
    return False


def differs(module: nn.Module) -> str:
    """How the state dict of a module differs from the values in the module and below it; empty if they are the same."""
    name = type(module).__name__
    held: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    held.update(module.named_buffers(remove_duplicate=False))
    added = []
    for key, value in module.state_dict(keep_vars=True).items():
        if key in held:
            if not _is_same(value, held[key]):
                return (
                    f"the state_dict() of {name} has a different {key} than the module itself, and leafwise cannot "
                    "know which one to use; save model.state_dict(), and load with model.load_state_dict()"
                )
        elif not _is_listed(module, key):
            added.append(key)
    if added:
        return (
            f"the state_dict() of {name} also contains {', '.join(added[:3])}, which {name} adds in a hook, or for a "
            "module below it; save model.state_dict(), and load with model.load_state_dict()"
        )
    return ""


def _is_listed(module: nn.Module, key: str) -> bool:
    """Whether the walk lists the value at a key of a module's state dict, because the module that it belongs to writes
    it itself."""
    first, dot, rest = key.partition(".")
    if dot and module._modules.get(first) is not None:
        return _is_listed(module._modules[first], rest)  # type: ignore[arg-type]
    return key == EXTRA or (writes_its_own(type(module)) and key in extras(module))


def _is_same(saved: Any, held: torch.Tensor) -> bool:
    """Whether a state dict has the tensor of the module itself. A computed one may be equal now, and differ later."""
    if saved is held:
        return True
    return isinstance(saved, torch.Tensor) and same_memory(saved, held)


def load_own_part(module: nn.Module, state: dict[str, Any]) -> None:
    """Loads a module's own part of a state dict, with its own methods and hooks."""
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
        raise RuntimeError(escape(f"{type(module).__name__} cannot load its own state: {'; '.join(errors[:3])}"))
