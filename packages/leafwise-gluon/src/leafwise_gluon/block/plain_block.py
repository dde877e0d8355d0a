"""`mxnet.gluon.Block`: a `torch.nn.Module` that behaves like Gluon's."""

import copy
import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import nn

from leafwise_gluon import dialect
from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import refusal
from leafwise_gluon.block.children import Children
from leafwise_gluon.block.hooks import HookHandle
from leafwise_gluon.block.loading import load_into, read_named
from leafwise_gluon.block.naming import BlockScope
from leafwise_gluon.block.saving import save_values
from leafwise_gluon.block.summary import LayerRows
from leafwise_gluon.context import current_context
from leafwise_gluon.init import Constant
from leafwise_gluon.modes import is_np_array
from leafwise_gluon.parameter import Parameter, ParameterDict
from leafwise_gluon.parameter.handle import UNIFORM
from leafwise_gluon.text import indented

_ONLY_IN_1 = {"prefix": "prefix", "name": "name"}  # attributes of blocks of MXNet 1.x, and of their scopes


class Block(nn.Module):
    """The base class of layers and models. PyTorch's own methods work: `named_parameters()`, `state_dict()`, `to()`.

    >>> from leafwise_gluon import Block, nn, np
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

    A block keeps the dialect in which it was made. In MXNet 1.x it has a name and a prefix, and shares parameters with
    `params=`; in 2.x, with `share_parameters()`.
    """

    _reg_params: dict[str, Parameter]  # the parameters that were assigned to attributes
    _scope: BlockScope | None  # the names of MXNet 1.x
    _is_settled: bool  # whether all of its own parameters are known to have values
    _shown: dict[str, None]  # the names of the children that were assigned to attributes: those that the text shows

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__()
        if not dialect.is_v1() and not (prefix is None and params is None):
            raise TypeError(
                "the Gluon front end does not support the arguments prefix and params of MXNet 1.x in MXNet 2.x; a "
                "block gets its name from the attribute it is assigned to, and shares parameters with "
                "share_parameters(other.collect_params())"
            )
        scope = BlockScope(prefix, params, self._alias()) if dialect.is_v1() else None
        self.__dict__.update(_reg_params={}, _scope=scope, _is_settled=False, _shown={})

    def _alias(self) -> str:
        """What the block is called in names, in lower case: `dense` of `dense0_weight`."""
        return type(self).__name__.lower()

    # -- attributes ----------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.get("_reg_params", {}).get(name, self.__dict__.get("_modules", {}).get(name))
        if isinstance(held, Parameter) and value is held.tensor:
            return  # a tool for PyTorch modules, such as lw.load, has put the tensor back in its place
        if held is not None and not isinstance(value, type(held)):
            raise TypeError(f"Changing attribute type for {name} from {type(held)} to {type(value)}is not allowed.")
        if isinstance(value, Parameter):
            assert self._scope is None or name not in self._reg_params, (
                f"Overriding Parameter attribute {name} is not allowed. If you want to share parameters between "
                "blocks, please set 'params' at Block construction instead."
            )
            self._register(name, value)
        elif isinstance(value, nn.Module):
            self.register_child(value, name)
            super().__setattr__(name, value)
            self._shown[name] = None
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__.get("_reg_params", {}).get(name)
        if held is not None:
            return held
        scope = self.__dict__.get("_scope")
        if scope is not None and name in _ONLY_IN_1:
            return getattr(scope, name)
        return super().__getattr__(name)

    def __delattr__(self, name: str) -> None:
        self._reg_params.pop(name, None)
        self._shown.pop(name, None)
        super().__delattr__(name)

    @property
    def _children(self) -> Children:
        return Children(self._modules, are_weak=self._scope is None)

    def _register(self, name: str, parameter: Parameter) -> None:
        self._reg_params[name] = parameter
        self._parameters[name] = parameter.tensor
        self.__dict__["_is_settled"] = False

    def share_parameter(self, name: str, parameter: Parameter) -> None:
        """Uses another Parameter in place of one of this block's own: from now on it is shared."""
        if self._scope is not None:
            self._scope.params.replace(self._reg_params[name], parameter)
        self._register(name, parameter)

    def use_own_parameter(self, name: str) -> None:
        """Uses a copy of one of its parameters from now on, which is not shared with any other block."""
        own = copy.deepcopy(self._reg_params[name])
        own.tensor.grad = None
        if self._scope is not None:
            own.name = self._scope.prefix + name
        self.share_parameter(name, own)

    def register_child(self, block: nn.Module, name: str | None = None) -> None:
        """Adds a child; if no name is given, the next number is its name."""
        self._modules[str(len(self._modules)) if name is None else name] = block

    def name_scope(self) -> BlockScope:
        """In MXNet 1.x: blocks that are made inside `with net.name_scope():` get the prefix of this block."""
        if self._scope is None:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute 'name_scope': MXNet 2.x has no names"
            )
        return self._scope

    def child_names(self) -> AbstractContextManager[Any]:
        """For layers of both dialects that make blocks of their own: the name scope, where there is one."""
        return nullcontext() if self._scope is None else self._scope

    # -- parameters ----------------------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """This block's own parameters, without those of its children."""
        return dict(self._reg_params) if self._scope is None else self._scope.params

    def own_parameter(self, name: str, **facts: Any) -> Parameter:
        """A parameter for a layer to assign to an attribute: a new one, or in MXNet 1.x one that `params=` shares.
        `facts` are the arguments of `Parameter`."""
        return Parameter(name, **facts) if self._scope is None else self._scope.params.get(name, **facts)

    def collect_params(self, select: str | None = None) -> Any:
        """Every parameter of this block and of the blocks in it; with `select`, those whose names this pattern matches
        from the start. In MXNet 2.x a dict by dotted names, in 1.x a ParameterDict."""
        self._warn_of_hidden_blocks()
        if self._scope is None:
            named = self.parameters_by_path()
            if select is None:
                return named
            pattern = re.compile(select)
            return {name: parameter for name, parameter in named.items() if pattern.match(name)}
        collected = ParameterDict(self._scope.params.prefix)
        pattern = re.compile(select or "")
        collected.update({name: value for name, value in self.params.items() if pattern.match(name)})
        for child in self._modules.values():
            if isinstance(child, Block):
                collected.update(child.collect_params(select))
        return collected

    def parameters_by_path(self) -> dict[str, Parameter]:
        """The parameters that are attributes of blocks, by their dotted paths; a shared one under each of its paths."""
        parameters = {}
        for path, module in self.named_modules(remove_duplicate=False):
            if isinstance(module, Block):
                for name, parameter in module._reg_params.items():
                    own = module.own_path(name)
                    parameters[f"{path}.{own}" if path else own] = parameter
        return parameters

    def own_path(self, name: str) -> str:
        """What stands for one of this block's own parameters in dotted paths and in files: its name. Recurrent layers
        of MXNet 1.x have other names in files."""
        return name

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        before = f"{prefix}." if prefix else ""
        return {before + path: parameter for path, parameter in self.parameters_by_path().items()}

    def _warn_of_hidden_blocks(self) -> None:
        children = {id(child) for child in self._modules.values()}
        for name, value in self.__dict__.items():
            if (
                name not in ("_modules", "_scope")
                and isinstance(value, list | tuple | dict)
                and _hides(value, children)
            ):
                warnings.warn(
                    f'"{type(self).__name__}.{name}" is an unregistered container with Blocks. Note that Blocks inside '
                    "the list, tuple or dict will not be registered automatically. Make sure to register them using "
                    "register_child() or switching to nn.Sequential/nn.HybridSequential instead. ",
                    stacklevel=3,
                )

    def initialize(
        self,
        init: Any = UNIFORM,
        device: Any = None,
        verbose: bool = False,
        force_reinit: bool = False,
        ctx: Any = None,
    ) -> None:
        """Initializes every parameter; one whose shape is not known yet, at the first forward pass."""
        parameters = self.collect_params()
        if verbose:
            init.set_verbosity(verbose=verbose)
        for parameter in parameters.values():
            parameter.initialize(None, ctx if device is None else device, init, force_reinit=force_reinit)

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
                    if shared.get(full) is not None:
                        module._register(name, shared[full])
                        left.discard(full)
        for name in sorted(left):
            warnings.warn(f"Parameter name {name} is not in the current model!", stacklevel=2)
        return self

    def save_parameters(self, filename: str, deduplicate: bool = False) -> None:
        """Saves the values as MXNet does: in its list format, or in MXNet 2.x in NumPy mode as npz. With `deduplicate`,
        a shared parameter is saved once, under its last name."""
        save_values(self._collect_params_with_prefix(), str(filename), self._scope is not None, deduplicate)

    def load_parameters(
        self,
        filename: str,
        device: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        cast_dtype: bool = False,
        dtype_source: str = "current",
        ctx: Any = None,
    ) -> None:
        """Loads values from a file of `save_parameters`, of either version of MXNet. Nothing is changed unless every
        value fits.

        - `allow_missing`: parameters that the file does not have keep their values.
        - `ignore_extra`: arrays in the file that the block does not have are ignored.
        - `cast_dtype`: values of another dtype are cast, to the dtype of the parameter, or with `dtype_source="saved"`
          the parameter gets the dtype of the file.
        """
        loaded = read_named(str(filename))
        parameters = self._collect_params_with_prefix()
        if not loaded and (self._scope is None or not parameters):
            return
        options: dict[str, Any] = {
            "allow_missing": allow_missing,
            "ignore_extra": ignore_extra,
            "cast_dtype": cast_dtype,
            "dtype_source": dtype_source,
        }
        contexts = ctx if device is None else device
        if self._scope is not None and not any("." in name for name in loaded):
            # In MXNet 1.x, a file whose names have no dots was saved by ParameterDict.save.
            self.collect_params().load_dict(
                loaded, contexts, restore_prefix=self.prefix, filename=str(filename), **options
            )
            return
        if self._scope is None and contexts is None:
            contexts = current_context()
        source = f"'file: {filename}'" if self._scope is None else f"file '{filename}'"
        load_into(parameters, loaded, source, contexts=contexts, **options)

    def load_dict(
        self,
        param_dict: Any,
        device: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        cast_dtype: bool = False,
        dtype_source: str = "current",
        ctx: Any = None,
    ) -> None:
        """Loads values from a dict of arrays by dotted names."""
        load_into(
            self.parameters_by_path(),
            param_dict,
            "'param_dict'",
            contexts=ctx if device is None else device,
            allow_missing=allow_missing,
            ignore_extra=ignore_extra,
            cast_dtype=cast_dtype,
            dtype_source=dtype_source,
        )

    def setattr(self, name: str, value: Any) -> None:
        """Sets an attribute of every parameter: `net.setattr("grad_req", "null")`."""
        for parameter in self.collect_params().values():
            setattr(parameter, name, value)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Sets all gradients to zero, in place; with `set_to_none`, drops them, as PyTorch does."""
        if set_to_none:
            super().zero_grad()
            return
        for parameter in self.collect_params().values():
            parameter.zero_grad()

    def reset_device(self, device: Any) -> None:
        """Moves all parameters to other contexts."""
        for parameter in self.collect_params().values():
            parameter.reset_device(device)

    def reset_ctx(self, ctx: Any) -> None:
        if self._scope is None:
            warnings.warn("Block.reset_ctx has been renamed to Block.reset_device", DeprecationWarning, stacklevel=2)
        self.reset_device(ctx)

    def cast(self, dtype: Any) -> None:
        """Converts all parameters to another dtype."""
        for child in self._modules.values():
            child.cast(dtype) if isinstance(child, Block) else child.to(dtype)  # type: ignore[union-attr]
        for parameter in self.params.values():
            parameter.cast(dtype)

    # -- as a PyTorch module -----------------------------------------------------------------------------

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        assigned = local_metadata.get("assign_to_params_buffers", False)
        for name, parameter in self._reg_params.items():
            values = state_dict.get(prefix + name)
            if values is None:
                continue
            if assigned and values.dtype is not parameter.tensor.dtype:
                parameter.cast(values.dtype)
            # A parameter that has no values yet gets its shape and values from the state dict.
            if not parameter.is_initialized:
                parameter.shape = tuple(values.shape)
                parameter.initialize(Constant(values))
        # Values are always copied, because several blocks may have one parameter, which has to stay the same tensor.
        copied = {**local_metadata, "assign_to_params_buffers": False}
        super()._load_from_state_dict(state_dict, prefix, copied, *rest)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Block":
        for name, parameter in self._reg_params.items():
            if len(parameter.tensors) > 1:
                raise refusal(
                    f"moving or casting {name} by PyTorch, because it is on several contexts",
                    "use net.cast() or net.reset_ctx()",
                )
        before = dict(self._parameters)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, parameter in self._reg_params.items():
            if self._parameters[name] is not before[name] and parameter.tensor is before[name]:
                parameter.adopt(self._parameters[name])  # PyTorch has made a new tensor, as for the device meta
            self._parameters[name] = parameter.tensor
        return self

    # -- over all blocks -----------------------------------------------------------------------------

    def apply(self, fn: Callable[[nn.Module], Any]) -> "Block":
        """Calls a function with every child, then with this block."""
        for child in self._modules.values():
            if child is not None:
                child.apply(fn)
        fn(self)
        return self

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridizes the children; a plain Block itself always runs its Python code."""
        for child in self._modules.values():
            if isinstance(child, Block):
                child.hybridize(active, **kwargs)

    def register_forward_hook(self, hook: Callable[..., Any], **torch_options: Any) -> Any:
        """Calls `hook(block, inputs, output)` after each forward pass. With PyTorch's options, it is PyTorch's hook."""
        if torch_options:
            return super().register_forward_hook(hook, **torch_options)
        return _attached(self._forward_hooks, hook)

    def register_forward_pre_hook(self, hook: Callable[..., Any], **torch_options: Any) -> Any:
        """Calls `hook(block, inputs)` before each forward pass. With PyTorch's options, it is PyTorch's hook."""
        if torch_options:
            return super().register_forward_pre_hook(hook, **torch_options)
        return _attached(self._forward_pre_hooks, hook)

    def register_op_hook(self, callback: Callable[..., Any], monitor_all: bool = False) -> NoReturn:
        raise refusal("Block.register_op_hook", "use register_forward_hook, which shows the output of each block")

    def summary(self, *inputs: Any) -> None:
        """Prints a table of the layers, their output shapes and their numbers of parameters."""
        rows, handles = LayerRows(inputs), []

        def watch(block: Any) -> None:
            if isinstance(block, Block):
                block.check_summary()
                if not block.is_container():
                    handles.append(block.register_forward_hook(rows.add))

        try:
            self.apply(watch)
            self(*inputs)
            print(rows.text())
        finally:
            for handle in handles:
                handle.detach()

    def is_container(self) -> bool:
        """Whether a summary leaves it out, because it only calls its children."""
        return False

    def check_summary(self) -> None:
        """Raises if the block cannot be part of a summary."""

    # -- forward -------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = super().__call__(*args, **kwargs)
        if type(output) is not ndarray and is_np_array():
            _check_output(output)
        return output

    def forward(self, *args: Any) -> Any:
        raise NotImplementedError

    def infer_shape(self, *args: Any) -> None:
        """Sets the parameter shapes that depend on the inputs; layers override this."""

    def finish_deferred_init(self, *args: Any) -> None:
        """Initializes this block's own parameters whose initialization was deferred until the input shapes are known.
        Raises if a parameter was never initialized. Layers call this before they use their parameters."""
        if self._is_settled:
            return
        if any(parameter.is_deferred for parameter in self._reg_params.values()):
            self.infer_shape(*args)
            for parameter in self._reg_params.values():
                parameter.finish_deferred_init()
        for parameter in self._reg_params.values():
            parameter.check_initialized()
        self.__dict__["_is_settled"] = True

    def tensor_for(self, name: str, x: Any) -> torch.Tensor | None:
        """The tensor of one of this block's own parameters, for a computation with `x`; None if there is none."""
        # Read from PyTorch's own dict, because torch.func.functional_call replaces the tensors there.
        tensor = self._parameters.get(name)
        if tensor is None or not isinstance(x, ArrayValues):
            return tensor
        parameter = self._reg_params[name]
        context = x.ctx
        if not parameter.is_only_on(context):
            tensor = parameter.tensor_on(context)
        return tensor if STATE.recording or not tensor.requires_grad else tensor.detach()

    def __repr__(self) -> str:
        children = "\n".join(f"  ({name}): {indented(repr(self._modules[name]))}" for name in self._shown)
        return f"{type(self).__name__}(\n{children}\n)"


def _attached(hooks: Any, hook: Callable[..., Any]) -> HookHandle:
    handle = HookHandle()
    handle.attach(hooks, hook)
    return handle


def _hides(value: Any, children: set[int]) -> bool:
    """Whether there is a block in nested containers that is not among the children."""
    if isinstance(value, Block):
        return id(value) not in children
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list | tuple) and any(_hides(entry, children) for entry in value)


def _check_output(output: Any) -> None:
    if type(output) is NDArray:
        raise TypeError(
            "Block's output ndarrays/symbols must be of type `mxnet.numpy.ndarray` or `mxnet.symbol.numpy._Symbol`, "
            f"while got output type {type(output)}"
        )
    if isinstance(output, list | tuple):
        for entry in output:
            _check_output(entry)
