"""Buffers on meta that are not part of any checkpoint: computed again, as when the model is built.

Loaded values do not change. A Hugging Face model is built again from its config, with its parameters on meta, and the
buffers are taken from that copy. If that fails, `_init_weights` is called, while all parameters and all other buffers
of the model are replaced by tensors without values.
"""

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from leafwise.homes.torch.ties.tied_views import plain_class
from leafwise.homes.torch.values.tensor_values import same_bits

Buffers = dict[str, torch.Tensor]

# Functions that create parameters. A buffer from one of them would be random, unlike the one in the trained model.
_MADE_FOR_PARAMETERS = {torch.empty, torch.rand, torch.randn, torch.empty_strided}
_UNLIKELY = {True: float("nan"), False: 111}  # by whether the dtype is floating point


def recompute(places: list[tuple[tuple[Any, ...], list[str]]]) -> list[Buffers]:
    """For each place, the buffers that can be computed. A place is a module with its parents, and the names of its
    buffers on meta."""
    rebuilt: dict[int, dict[int, Buffers]] = {}  # by the identity of the model
    buffers_by_place = []
    for lineage, names in places:
        computed = _by_constructor(lineage, names, rebuilt)
        left = [name for name in names if name not in computed]
        buffers_by_place.append(computed | (_by_init_weights(lineage, left) if left else {}))
    return buffers_by_place


# -- by the constructor ----------------------------------------------------------------------------------------------


def _by_constructor(lineage: tuple[Any, ...], names: list[str], rebuilt: dict[int, dict[int, Buffers]]) -> Buffers:
    module = lineage[0]
    computed: Buffers = {}
    # The whole model first: it may build its parts with other values than those in their configs.
    for model in reversed([above for above in lineage if _config(above) is not None]):
        if id(model) not in rebuilt:
            rebuilt[id(model)] = _rebuilt_buffers(model)
        buffers = rebuilt[id(model)].get(id(module), {})
        for name in [name for name in names if name not in computed and name in buffers]:
            held, made = module._buffers[name], buffers[name]
            if held.shape == made.shape and held.dtype.is_floating_point == made.dtype.is_floating_point:
                computed[name] = made.to(device=torch.empty(0).device, dtype=held.dtype, copy=True)
    return computed


def _config(module: Any) -> Any:
    """The config of a Hugging Face model; None for any other module."""
    is_model = any(base.__name__ in ("PreTrainedModel", "ModelMixin") for base in type(module).__mro__)
    return getattr(module, "config", None) if is_model else None


def _rebuilt_buffers(model: nn.Module) -> dict[int, Buffers]:
    """The buffers of a model that is built a second time, by the identity of the module in the first one, without those
    that are random."""
    try:
        first, second = _copy(model, 0), _copy(model, 1)
    except Exception:
        return {}  # a constructor that needs more than a config
    rebuilt = {}
    for path, module in model.named_modules():
        again = second.get(path, {})
        made = first.get(path, {}).items()
        rebuilt[id(module)] = {
            name: buffer for name, buffer in made if name in again and same_bits(buffer, again[name])
        }
    return rebuilt


def _copy(model: nn.Module, seed: int) -> dict[str, Buffers]:
    cls: Any = plain_class(type(model))
    config = copy.deepcopy(_config(model))
    build = cls.from_config if hasattr(cls, "load_config") else cls  # diffusers, transformers
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), _ParametersOnMeta(), torch.no_grad():
        torch.default_generator.manual_seed(seed)  # not the generators of GPUs, whose state would be lost
        made = build(config)
    return {
        path: {name: buffer for name, buffer in module._buffers.items() if buffer is not None and not buffer.is_meta}
        for path, module in made.named_modules()
    }


class _ParametersOnMeta(TorchFunctionMode):
    """While a model is built, its parameters are created on meta, which needs neither memory nor time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MADE_FOR_PARAMETERS and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


# -- by `_init_weights` ----------------------------------------------------------------------------------------------


def _by_init_weights(lineage: tuple[Any, ...], names: list[str]) -> Buffers:
    """All of these buffers of a module, or none of them."""
    module = lineage[0]
    model = next((above for above in lineage if inspect.ismethod(getattr(above, "_init_weights", None))), None)
    if model is None:
        return {}
    with _out_of_reach(model, module):
        for name in names:
            held = module._buffers[name]
            module._buffers[name] = torch.full(
                held.shape, _UNLIKELY[held.dtype.is_floating_point], dtype=held.dtype, device=torch.empty(0).device
            )
        try:
            with torch.no_grad():
                model._init_weights(module)
            made = {name: module._buffers[name] for name in names}
        except Exception:
            return {}  # an `_init_weights` that needs more than the module
    return made if all(map(_was_filled, made.values())) else {}


@contextmanager
def _out_of_reach(*models: nn.Module) -> Iterator[None]:
    """Replaces all parameters and buffers by tensors without values, and puts them back afterwards."""
    modules = list({id(module): module for model in models for module in model.modules()}.values())
    before = [(module, dict(module._parameters), dict(module._buffers)) for module in modules]
    try:
        for module, parameters, buffers in before:
            for name, held in parameters.items():
                if held is not None and not nn.parameter.is_lazy(held):
                    module._parameters[name] = nn.Parameter(held.detach().to("meta"), requires_grad=held.requires_grad)
            for name, value in buffers.items():
                if value is not None and not nn.parameter.is_lazy(value):
                    module._buffers[name] = value.detach().to("meta")
        yield
    finally:
        for module, parameters, buffers in before:
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)


def _was_filled(tensor: torch.Tensor) -> bool:
    if tensor.is_meta:
        return False
    if not tensor.numel():
        return True
    if tensor.dtype.is_floating_point:
        return not bool(torch.isnan(tensor).any())
    return not bool((tensor == _UNLIKELY[False]).all())
