"""`mxnet.gluon.Block`: a `torch.nn.Module` that behaves like Gluon's."""

import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leafwise.gluon.arrays.autograd_state import differentiating
from leafwise.gluon.arrays.values import ArrayValues
from leafwise.gluon.init import Constant
from leafwise.gluon.parameter import Parameter


class Block(nn.Module):
    """The base class of layers and models. PyTorch's own methods work: `named_parameters()`, `state_dict()`, `to()`.

    >>> from leafwise.gluon import Block, nn, np
    >>> class Twice(Block):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Dense(2, in_units=2)
    ...     def forward(self, x):
    ...         return self.layer(self.layer(x))
    >>> net = Twice()
    >>> net.initialize()
    >>> net.collect_params()
    {'layer.weight': Parameter (shape=(2, 2), dtype=float32), 'layer.bias': Parameter (shape=(2,), dtype=float32)}
    >>> [name for name, _ in net.named_parameters()]
    ['layer.weight', 'layer.bias']
    """

    _reg_params: dict[str, Parameter]

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__()
        object.__setattr__(self, "_reg_params", {})
        if prefix is not None or params is not None:
            raise TypeError(
                "the Gluon front end does not support the arguments prefix and params of MXNet 1.x; a block gets its "
                "name from the attribute it is assigned to, and shares parameters with "
                "share_parameters(other.collect_params())"
            )

    # -- attributes ----------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.get("_reg_params", {}).get(name, self.__dict__.get("_modules", {}).get(name))
        if held is not None and not isinstance(value, type(held)) and not isinstance(held, type(value)):
            raise TypeError(f"Changing attribute type for {name} from {type(held)} to {type(value)}is not allowed.")
        if isinstance(value, Parameter):
            self._register(name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__.get("_reg_params", {}).get(name)
        return super().__getattr__(name) if held is None else held

    def __delattr__(self, name: str) -> None:
        self._reg_params.pop(name, None)
        super().__delattr__(name)

    @property
    def _children(self) -> dict[str, Any]:
        """The children as Gluon 2.x stores them: weak references, so that `child()` is the block."""
        return {name: weakref.ref(child) for name, child in self._modules.items()}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # A parameter that has no values yet gets its shape and values from the state dict.
        for name, parameter in self._reg_params.items():
            values = state_dict.get(prefix + name)
            if values is not None and not parameter.is_initialized:
                parameter.shape = tuple(values.shape)
                parameter.initialize(Constant(values))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _register(self, name: str, parameter: Parameter) -> None:
        self._reg_params[name] = parameter
        self._parameters[name] = parameter.tensor

    def register_child(self, block: nn.Module, name: str | None = None) -> None:
        """Adds a child; if no name is given, the next number is its name."""
        self.add_module(str(len(self._modules)) if name is None else name, block)

    # -- parameters ----------------------------------------------------------------------------------

    @property
    def params(self) -> dict[str, Parameter]:
        """This block's own parameters, without those of its children."""
        return dict(self._reg_params)

    def collect_params(self, select: str | None = None) -> dict[str, Parameter]:
        """Every parameter by its dotted name; with `select`, those whose names this pattern matches from the start."""
        parameters = {}
        for path, module in self.named_modules(remove_duplicate=False):
            if isinstance(module, Block):
                for name, parameter in module._reg_params.items():
                    parameters[f"{path}.{name}" if path else name] = parameter
        if select is None:
            return parameters
        pattern = re.compile(select)
        return {name: parameter for name, parameter in parameters.items() if pattern.match(name)}

    def initialize(
        self, init: Any = None, device: Any = None, verbose: bool = False, force_reinit: bool = False, ctx: Any = None
    ) -> None:
        """Initializes every parameter; one whose shape is not known yet, at the first forward pass."""
        for parameter in self.collect_params().values():
            parameter.initialize(None, device, init, force_reinit=force_reinit)

    def share_parameters(self, shared: Any) -> "Block":
        """Replaces parameters of this block by those in a dict of dotted names, such as `other.collect_params()`."""
        if shared is None:
            return self
        if not isinstance(shared, dict):
            raise ValueError(f"'shared' should be in type of Dict. Get type {type(shared)}!")
        left = set(shared)
        for path, module in self.named_modules(remove_duplicate=False):
            if isinstance(module, Block):
                for name in module._reg_params:
                    full = f"{path}.{name}" if path else name
                    if full in shared:
                        module._register(name, shared[full])
                        left.discard(full)
        for name in sorted(left):
            warnings.warn(f"Parameter name {name} is not in the current model!", stacklevel=2)
        return self

    def apply(self, fn: Callable[[nn.Module], Any]) -> "Block":
        super().apply(fn)
        return self

    def setattr(self, name: str, value: Any) -> None:
        """Sets an attribute of every parameter: `net.setattr("grad_req", "null")`."""
        for parameter in self.collect_params().values():
            setattr(parameter, name, value)

    def own_parameter(self, name: str, **facts: Any) -> Parameter:
        """A new parameter for a layer to assign to an attribute; `facts` are the arguments of `Parameter`."""
        return Parameter(name, **facts)

    def tensor_for(self, name: str, x: Any) -> torch.Tensor | None:
        """The tensor of one of this block's own parameters, for a computation with `x`; None if there is none."""
        # Read from PyTorch's own dict, because torch.func.functional_call replaces the tensors there.
        return self._parameters.get(name)

    # -- forward -------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(arg, ArrayValues) for arg in (*args, *kwargs.values())):
            return super().__call__(*args, **kwargs)
        with torch.set_grad_enabled(differentiating()):
            return super().__call__(*args, **kwargs)

    def infer_shape(self, *args: Any) -> None:
        """Sets the parameter shapes that depend on the inputs; layers override this."""

    def finish_deferred_init(self, *args: Any) -> None:
        """Initializes this block's own parameters whose initialization was deferred until the input shapes are known.
        Raises if a parameter was never initialized. Layers call this before they use their parameters."""
        if any(parameter.is_deferred for parameter in self._reg_params.values()):
            self.infer_shape(*args)
            for parameter in self._reg_params.values():
                parameter.finish_deferred_init()
        for parameter in self._reg_params.values():
            parameter.check_initialized()

    def __repr__(self) -> str:
        children = "\n".join(f"  ({name}): {_indented(repr(child))}" for name, child in self._modules.items())
        return f"{type(self).__name__}(\n{children}\n)"


def _indented(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


class HybridBlock(Block):
    """The same as a Block: PyTorch does not need a separate hybrid form."""

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Does nothing; to compile, use `torch.compile(net)`."""
