"""`mxnet.gluon.HybridBlock`: in MXNet it can be compiled; here it runs as it is."""

import importlib
import warnings
from typing import Any, NoReturn

import torch

from leafwise_gluon import autograd
from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.choosing import wrap_by_mode
from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import DeferredInitializationError, refusal
from leafwise_gluon.block.arguments import COMPILED, as_lists, check_structure, structure
from leafwise_gluon.block.plain_block import Block
from leafwise_gluon.block.shape_probe import probe_shapes
from leafwise_gluon.shapes import shape_is_known

_NOT_AN_ARRAY = "Please check the type of the args.\n"


class HybridBlock(Block):
    """A Block whose children are hybrid, too. `hybridize()` only notes that it was called: the Python code still runs
    at every call. To compile, use `torch.compile(net)`.

    Blocks for MXNet 1.x define `hybrid_forward(F, x, weight=...)`, which gets the module `nd` and the parameters.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "hybrid_forward" in vars(cls) and "forward" not in vars(cls):
            cls.forward = HybridBlock.forward  # type: ignore[method-assign] # not that of the layer it extends

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        assert self._scope is not None or not _is_old_style(type(self)), (
            "'forward' instead of 'hybrid_forward' interface needs to be used starting from Gluon2.0."
            "Please follow MXNet2.0 Migration Guide to use new APIs."
        )
        self.__dict__.update(_active=False, _has_inferred=False, _structure=None)

    # -- children --------------------------------------------------------------------------------------

    def register_child(self, block: torch.nn.Module, name: str | None = None) -> None:
        if isinstance(block, Block) and not isinstance(block, HybridBlock):
            raise ValueError(
                f"Children of HybridBlock must also be HybridBlock, but {block} has type {type(block)}. If you are "
                "using Sequential, please try HybridSequential instead."
            )
        super().register_child(block, name)
        if self._scope is None:
            self._deactivate("adding new children block")

    def _deactivate(self, why: str) -> None:
        if self._active:
            warnings.warn(
                "Currently the model has been hybridized. Automatically deactivate the hybridization"
                f"                            when {why}.",
                stacklevel=3,
            )
            self.__dict__["_active"] = False

    def cast(self, dtype: Any) -> None:
        if self._scope is None:
            self._deactivate("cast the block to use another data type")
        super().cast(dtype)

    # -- hybridize -------------------------------------------------------------------------------------

    def hybridize(self, active: bool = True, backend: Any = None, **options: Any) -> None:
        """Notes that the block is hybridized, as its children are. Results are the same; Python code and hooks run at
        every call, unlike in MXNet."""
        if backend is not None and self._scope is not None:
            raise refusal(f"hybridize(backend={backend!r})", "leave it out, or use torch.compile(net)")
        unknown = set(options) - _OPTIONS if self._scope is None else ()
        if unknown:
            raise TypeError(f"hybridize() got an unexpected keyword argument {min(unknown)!r}")
        self.__dict__.update(_active=active, _structure=None)
        if (active and self._forward_hooks) or self._forward_pre_hooks:
            warnings.warn(
                f'"{self}" is being hybridized while still having forward hook/pre-hook. If "{self}" is a child of '
                "HybridBlock, the hooks will not take effect.",
                stacklevel=2,
            )
        super().hybridize(active, **{name: value for name, value in options.items() if name in _PASSED_ON})

    def optimize_for(self, x: Any, *args: Any, backend: Any = None, clear: bool = False, **options: Any) -> None:
        """In MXNet 2.x without a backend: hybridizes the block and initializes what was deferred."""
        if self._scope is not None and not backend:
            raise ValueError('Must specify "backend" to optimize_for')
        if backend:
            raise refusal(f"optimize_for(backend={backend!r})", "use torch.compile(net)")
        if clear or not self._active:
            self.hybridize(True, **options)
        with autograd.pause():
            self(x, *args)

    def export(self, path: Any, epoch: int = 0, remove_amp_cast: bool = True) -> NoReturn:
        if not self._active or self._structure is None:
            raise RuntimeError(
                "Please first call block.hybridize() and then run forward with this block at least once before calling "
                "export."
            )
        raise refusal("HybridBlock.export", "use save_parameters, or torch.export.export(net, inputs)")

    def check_summary(self) -> None:
        name = type(self).__name__ if self._scope is None else self.name
        assert not self._active, f'"{name}" must not be hybridized to print summary.'

    # -- forward ---------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._scope is None:
            if args and type(args[0]) is not ndarray:
                _check_inputs(args, kwargs)
            if not self._has_inferred:
                self.infer_shape(*args, **kwargs)
                for parameter in self._reg_params.values():
                    parameter.finish_deferred_init()
                self.__dict__["_has_inferred"] = True
        if self.is_compiled():
            return self._call_compiled(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def is_compiled(self) -> bool:
        """Whether MXNet runs the next call as a compiled graph: hybridized, and called by the user."""
        return self._active and not COMPILED.inside

    def _call_compiled(self, *args: Any, **kwargs: Any) -> Any:
        """The call of a hybridized block by the user: its arguments must have the structure of the first call, and
        several results come as lists."""
        given = structure(args)
        if self._structure is None:
            self.__dict__["_structure"] = given
        check_structure(given, self._structure)
        COMPILED.inside = True
        try:
            return as_lists(super().__call__(*args, **kwargs))
        finally:
            COMPILED.inside = False

    def infer_shape(self, *args: Any) -> None:
        """Sets the parameter shapes that depend on the inputs. Blocks with such parameters implement this."""
        unknown = [parameter for parameter in self._reg_params.values() if not shape_is_known(parameter.known_sizes)]
        if unknown and self._scope is not None:
            probe_shapes(self, importlib.import_module("leafwise_gluon.nd"), args)
        elif unknown:
            name = type(self).__name__
            raise RuntimeError(
                f"{name} has parameters with unknown shape. You need to either specify the shape in __init__ or "
                f"implement {name}.infer_shape to set the parameter shapes based on the first input. Parameters with "
                f"unknown shapes are {', '.join(f'{parameter.name} ({parameter.shape})' for parameter in unknown)}"
            )

    def infer_type(self, *args: Any) -> NoReturn:
        raise refusal("HybridBlock.infer_type", "use net.cast(dtype)")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `hybrid_forward` with the module `nd` and this block's own parameters."""
        if self._scope is None:
            raise NotImplementedError
        tensors = _tensors_in(args)
        if tensors and not _arrays_in(args):
            return self._forward_tensors(*args, **kwargs)
        arrays = _arrays_in(args)
        if not arrays:
            raise ValueError(f"In HybridBlock, there must be one NDArray or one Symbol in the input. {_NOT_AN_ARRAY}")
        context = arrays[0].ctx
        with context:
            try:
                parameters = {name: parameter.data(context) for name, parameter in self._reg_params.items()}
            except DeferredInitializationError:
                self._infer_deferred(*args)
                parameters = {name: parameter.data(context) for name, parameter in self._reg_params.items()}
            functions = importlib.import_module("leafwise_gluon.nd")
            return self.hybrid_forward(functions, *args, **{**kwargs, **parameters})

    def _infer_deferred(self, *args: Any) -> None:
        try:
            self.infer_shape(*args)
        except Exception as error:
            raise ValueError(f"Deferred initialization failed because shape cannot be inferred. {error}") from error
        for parameter in self.params.values():
            parameter.finish_deferred_init()

    def _forward_tensors(self, *args: Any, **kwargs: Any) -> Any:
        """Runs `hybrid_forward` on PyTorch's tensors, differentiated as PyTorch's modules are."""
        before, STATE.recording = STATE.recording, torch.is_grad_enabled()
        try:
            return _changed(
                lambda x: x.tensor, ArrayValues, self.forward(*_changed(wrap_by_mode, torch.Tensor, args), **kwargs)
            )
        finally:
            STATE.recording = before

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
        """What a block computes, given the module `nd`, the inputs, and its parameters by keyword."""
        for cls in type(self).__mro__:
            if "forward" in vars(cls) and vars(cls)["forward"] is not HybridBlock.forward:
                break
        else:
            raise NotImplementedError
        # `super().hybrid_forward(F, x, weight, bias)` of a class that extends a layer
        parameters = [parameter.tensor for parameter in self._reg_params.values()]
        others = [value for value in args if not any(_is(value, parameter) for parameter in parameters)]
        if not all(any(_is(value, parameter) for parameter in parameters) for value in kwargs.values()):
            raise refusal(
                f"{cls.__name__}.hybrid_forward with other parameters than its own", "call functions of nd instead"
            )
        return vars(cls)["forward"](self, x, *others)


_PASSED_ON = {"static_alloc", "static_shape", "inline_limit", "forward_bulk_size", "backward_bulk_size"}
_OPTIONS = _PASSED_ON | {"partition_if_dynamic"}


def _is_old_style(cls: type) -> bool:
    """Whether it is a user's class with a `hybrid_forward`; as_mxnet() shows classes of this package as MXNet's."""
    definer = next(base for base in cls.__mro__ if "hybrid_forward" in vars(base))
    return definer.__module__.partition(".")[0] not in ("leafwise_gluon", "mxnet")


def _is(value: Any, tensor: Any) -> bool:
    return isinstance(value, ArrayValues) and value.tensor is tensor


def _check_inputs(args: Any, kwargs: Any) -> None:
    """Raises MXNet's error for arrays of `nd`, and if there is no array at all."""
    inputs = (*args, *kwargs.values())
    for array in _arrays_in(inputs):
        if not isinstance(array, ndarray):
            raise TypeError(
                f"Block's inputs must be of type `mxnet.numpy.ndarray`, while got output type {type(array)}"
            )
    if not _arrays_in(inputs) and not _tensors_in(inputs):
        raise ValueError(f"In HybridBlock, there must be one NDArray in the input. {_NOT_AN_ARRAY}")


def _arrays_in(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [array for entry in value for array in _arrays_in(entry)]
    return [value] if isinstance(value, NDArray) else []


def _tensors_in(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [tensor for entry in value for tensor in _tensors_in(entry)]
    return [value] if isinstance(value, torch.Tensor) else []


def _changed(change: Any, cls: type, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_changed(change, cls, entry) for entry in value)
    return change(value) if isinstance(value, cls) else value
