"""`mxnet.gluon.Parameter`: a handle on a `torch.nn.Parameter` whose shape may be inferred later."""

import warnings
from itertools import count
from typing import Any, NoReturn

import numpy
import torch

from leafwise_gluon import autograd, dialect
from leafwise_gluon import init as initializers
from leafwise_gluon.arrays.choosing import wrap_by_mode
from leafwise_gluon.arrays.dtypes import numpy_dtype, torch_dtype
from leafwise_gluon.arrays.gradients import check_grad_req
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import DeferredInitializationError, refusal
from leafwise_gluon.context import Context, as_context, context_of
from leafwise_gluon.parameter.replicas import Replicas
from leafwise_gluon.shapes import shape_is_known, shown, sizes

UNIFORM = initializers.Uniform()
_NUMBERS = count()
_STYPES = ("default", "row_sparse", "csr")


class Parameter:
    """A Gluon parameter. `tensor` is the underlying PyTorch parameter, which always stays the same object.

    >>> from leafwise_gluon import Parameter
    >>> p = Parameter("weight", shape=(2, 2))
    >>> p.initialize(init="ones")
    >>> p.data()
    array([[1., 1.],
           [1., 1.]])
    >>> p.grad()
    array([[0., 0.],
           [0., 0.]])

    Initialized on several contexts, it has values and a gradient on each of them; `tensor` is the first one.
    """

    def __init__(
        self,
        name: str = "weight",
        grad_req: str = "write",
        shape: Any = None,
        dtype: Any = numpy.float32,
        lr_mult: float = 1.0,
        wd_mult: float = 1.0,
        init: Any = None,
        allow_deferred_init: bool = False,
        differentiable: bool = True,
        stype: str = "default",
        grad_stype: str = "default",
    ) -> None:
        _check_stype("grad_stype", grad_stype)
        _check_stype("stype", stype)
        self.name = name
        self.lr_mult, self.wd_mult, self.init = lr_mult, wd_mult, init
        self._differentiable, self._allow_deferred_init = differentiable, allow_deferred_init
        self._dtype = dtype
        self._shape = None if shape is None else sizes(shape)
        # What `initialize` was given while the shape is not known: initializer, contexts, default initializer; and the
        # values that `set_data` was given since.
        self._deferred_init: tuple[Any, list[Context], Any, Any] | tuple[()] = ()
        self.number = next(_NUMBERS)  # says in which order parameters were made
        self.times_set = 0  # how often `set_data` has replaced the values
        self._names_itself = dialect.is_v1()  # whether the text shows the name
        self._replicas = Replicas(torch_dtype(dtype))
        check_grad_req(grad_req)
        self._grad_req = grad_req if differentiable else "null"
        self._replicas.require_gradients(self._grad_req)

    def __repr__(self) -> str:
        name = f"{self.name} " if self._names_itself else ""
        return f"Parameter {name}(shape={self.shape}, dtype={self.dtype})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._replicas.mark(self._grad_req)

    @property
    def tensor(self) -> Any:
        """The PyTorch parameter; on several contexts, the first one."""
        return self._replicas.first

    @property
    def tensors(self) -> list[Any]:
        """The PyTorch parameters, one for each context."""
        return self._replicas.tensors

    # -- shape, dtype and grad_req -------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape; unknown dimensions are -1 (outside NumPy shape mode: 0) until the first forward pass."""
        return shown(self._shape)

    @shape.setter
    def shape(self, new: Any) -> None:
        mine, asked = self._shape, tuple(new)
        if mine is not None:
            fits = len(mine) == len(asked) and all(a in (0, b) for a, b in zip(mine, asked, strict=True))
            whose = "" if dialect.is_v1() else f" for Parameter {self.name}"
            assert fits, f"Expected shape {asked} is incompatible with given shape {mine}{whose}."
        self._shape = sizes(asked)

    def merge_shape(self, other: Any) -> bool:
        """Fills unknown dimensions from another shape; False if the two shapes contradict each other."""
        mine, theirs = self._shape, sizes(other)
        if mine is None:
            self._shape = theirs
            return True
        if len(mine) != len(theirs) or any(a and b and a != b for a, b in zip(mine, theirs, strict=True)):
            return False
        self._shape = tuple(a or b for a, b in zip(mine, theirs, strict=True))
        return True

    @property
    def known_sizes(self) -> tuple[int, ...]:
        """The shape with 0 for unknown dimensions, in every mode."""
        return self._shape or ()

    @property
    def dtype(self) -> Any:
        """The dtype as it was given, or the current one if PyTorch has changed it since (`net.half()`)."""
        if self.tensor.dtype is not torch_dtype(self._dtype):
            self._dtype = numpy_dtype(self.tensor.dtype).name
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self.cast(dtype)

    def cast(self, dtype: Any) -> None:
        """Changes the dtype, and converts the values and the gradient."""
        self._replicas.cast(torch_dtype(dtype))
        self._dtype = numpy_dtype(dtype).name if isinstance(dtype, torch.dtype) else dtype

    @property
    def grad_req(self) -> str:
        """'write' overwrites the gradient at each backward, 'add' adds to it, 'null' computes no gradient.

        It is 'null' while the tensor is frozen by PyTorch or `lw.freeze`.
        """
        is_frozen = self.tensor.dtype.is_floating_point and not self.tensor.requires_grad
        return "null" if is_frozen else self._grad_req

    @grad_req.setter
    def grad_req(self, grad_req: str) -> None:
        check_grad_req(grad_req)
        asked = grad_req if self._differentiable else "null"
        if not asked == self._grad_req == self.grad_req:
            self._grad_req = asked
            self._replicas.require_gradients(asked)

    # -- initial values ------------------------------------------------------------------------------

    def initialize(
        self,
        init: Any = None,
        device: Any = None,
        default_init: Any = UNIFORM,
        force_reinit: bool = False,
        ctx: Any = None,
    ) -> None:
        """Draws initial values: now, or at the first forward pass if the shape is not known yet."""
        if self.is_initialized and not force_reinit:
            warnings.warn(
                f"Parameter '{self.name}' is already initialized, ignoring. Set force_reinit=True to re-initialize.",
                stacklevel=2,
            )
            return
        self._replicas.drop()  # if the new initializer fails, there are no values, as in MXNet
        chosen = init if init is not None else self.init if self.init is not None else default_init
        if isinstance(self.init, initializers.RNNFused):
            self.init.set_initializer(init or default_init)
            chosen = default_init = self.init
        if not shape_is_known(self._shape) and not self._allow_deferred_init:
            raise ValueError(f"Cannot initialize Parameter '{self.name}' because it has invalid shape: {self.shape}.")
        self._deferred_init = (chosen, _listed(ctx if device is None else device), default_init, None)
        if shape_is_known(self._shape):
            self.finish_deferred_init()

    def finish_deferred_init(self) -> None:
        """Draws the values that `initialize` deferred; the shape must be known by now."""
        if not self.is_deferred:
            return
        assert self._deferred_init
        init, contexts, default_init, values = self._deferred_init
        self._deferred_init = ()
        assert shape_is_known(self._shape), (
            f"Cannot initialize Parameter '{self.name}' because it has invalid shape: {self.shape}. "
            "Please specify in_units, in_channels, etc for `Block`s."
        )
        assert self._shape is not None
        with autograd.pause():
            if values is None:
                array = wrap_by_mode(torch.zeros(self._shape, dtype=torch_dtype(self.dtype)))
                description = initializers.InitDesc(self.name, {"__init__": init})
                initializers.create(default_init)(description, array)
                values = array.tensor
            self._replicas.place(values, contexts, self._grad_req)

    def defer_zeros(self) -> None:
        """Makes a deferred initialization give zeros."""
        if self._deferred_init:
            self._deferred_init = (initializers.Zero(), self._deferred_init[1], initializers.Zero(), None)

    def set_data(self, data: Any) -> None:
        """Replaces the values in place. While initialization is deferred, keeps them until the first forward pass."""
        values = _tensor_of(data)
        self.shape = tuple(values.shape)
        if not self.is_initialized:
            assert self._deferred_init, f"Parameter '{self.name}' has not been initialized"
            self._deferred_init = (*self._deferred_init[:3], values.to(torch_dtype(self.dtype), copy=True))
            return
        self.times_set += 1
        with torch.no_grad():
            for tensor in self._replicas.placed:
                tensor.copy_(values)

    def check_values(
        self, data: Any, contexts: Any = None, cast_dtype: bool = False, dtype_source: str = "current"
    ) -> None:
        """Raises if `load_values` cannot take these values."""
        values = _tensor_of(data)
        assert not cast_dtype or dtype_source in ("current", "saved")
        if self._shape:
            sizes_match = (mine in (0, size) for mine, size in zip(self._shape, values.shape, strict=False))
            fits = len(self._shape) == values.dim() and all(sizes_match)
            assert fits, (
                f"Failed loading Parameter '{self.name}' from saved params: shape incompatible expected {self.shape} "
                f"vs saved {tuple(values.shape)}"
            )
        assert cast_dtype or torch_dtype(self.dtype) is values.dtype, (
            f"Failed loading Parameter '{self.name}' from saved params: dtype incompatible expected {self.dtype} "
            f"vs saved {numpy_dtype(values.dtype)}. Set cast_dtype=True to cast the dtype of saved params."
        )
        if contexts is not None and (self.is_initialized or self._deferred_init):
            assert set(_listed(contexts)) == set(self._list_contexts()), (
                f"Failed to load Parameter '{self.name}' on {_listed(contexts)} because it was previous initialized on "
                f"{self._list_contexts()}."
            )

    def load_values(
        self, data: Any, contexts: Any = None, cast_dtype: bool = False, dtype_source: str = "current"
    ) -> None:
        """Takes values from a file or a dict of arrays; they determine the dimensions that are not known yet."""
        self.check_values(data, contexts, cast_dtype, dtype_source)
        values = _tensor_of(data)
        self._shape = tuple(values.shape)
        if torch_dtype(self.dtype) is not values.dtype:
            if dtype_source == "saved":
                self.cast(numpy_dtype(values.dtype).type)
            values = values.to(torch_dtype(self.dtype))
        if self.is_initialized:
            self.set_data(values)
        else:
            given = None if contexts is None else _listed(contexts)
            asked = list(self._deferred_init[1]) if self._deferred_init else given
            self._replicas.place(values, asked or [Context("cpu", 0)], self._grad_req)
        self._deferred_init = ()

    # -- values and gradients ------------------------------------------------------------------------

    @property
    def is_initialized(self) -> bool:
        """Whether it has values."""
        if self._replicas.is_filled_by_pytorch:
            self._keep_values_of_pytorch()
        return self._replicas.has_values

    @property
    def is_deferred(self) -> bool:
        """Whether it gets its values at the first forward pass, once its shape is known."""
        return not self.is_initialized and bool(self._deferred_init)

    def _keep_values_of_pytorch(self) -> None:
        """Takes the values that were loaded into the tensor as its own, so that the first forward pass keeps them."""
        values = self.tensor.detach()
        self.shape = tuple(values.shape)
        contexts = self._deferred_init[1] if self._deferred_init else [context_of(values)]
        self._deferred_init = ()
        self._replicas.place(values, contexts, self._grad_req)

    def check_initialized(self) -> None:
        """Raises MXNet's error if it has no values yet."""
        if self.is_initialized:
            return
        if self._deferred_init:
            raise DeferredInitializationError(
                f"Parameter '{self.name}' has not been initialized yet because initialization was deferred. Actual "
                "initialization happens during the first forward pass. Please pass one batch of data through the "
                "network before accessing Parameters. You can also avoid deferred initialization by specifying "
                "in_units, num_features, etc., for network layers."
            )
        raise RuntimeError(
            f"Parameter '{self.name}' has not been initialized. Note that you should initialize parameters and create "
            "Trainer with Block.collect_params() instead of Block.params because the later does not include Parameters "
            "of nested child Blocks"
        )

    def data(self, device: Any = None, ctx: Any = None) -> Any:
        """The live array: writing to it changes the parameter."""
        self.check_initialized()
        return self._replicas.array(self._replicas.index(ctx if device is None else device, self.name))

    def list_data(self) -> list[Any]:
        """The live arrays on all contexts."""
        self.check_initialized()
        return [self._replicas.array(index) for index in range(len(self._replicas.placed))]

    def grad(self, device: Any = None, ctx: Any = None) -> Any:
        """The gradient; zeros before any backward."""
        self._check_gradient()
        return self._replicas.gradient(self._replicas.index(ctx if device is None else device, self.name))

    def list_grad(self) -> list[Any]:
        """The gradients on all contexts."""
        self._check_gradient()
        return [self._replicas.gradient(index) for index in range(len(self._replicas.placed))]

    def _check_gradient(self) -> None:
        self.check_initialized()
        if self.grad_req == "null":
            raise RuntimeError(f"Cannot get gradient array for Parameter '{self.name}' because grad_req='null'")

    def zero_grad(self) -> None:
        """Sets the gradient to zero, in place."""
        for tensor in self._replicas.placed:
            if tensor.grad is not None:
                tensor.grad.zero_()

    def tensor_on(self, context: Context) -> Any:
        """The tensor on a context."""
        self.check_initialized()
        return self.tensors[self._replicas.index(context, self.name)]

    def adopt(self, tensor: Any) -> None:
        """Takes over a tensor that PyTorch has put in the place of its own."""
        self._replicas.first = tensor
        self._replicas.mark(self._grad_req)

    def mean(self) -> torch.Tensor:
        """A copy of the values; on several contexts, their mean, which is what MXNet saves."""
        self.check_initialized()
        if not self._replicas.placed:
            self._replicas.index(None, self.name)  # raises
        return self._replicas.mean()

    # -- contexts ------------------------------------------------------------------------------------

    def is_only_on(self, context: Context) -> bool:
        """Whether this is its only context. A quick question, which may be answered with False too often."""
        return self._replicas.only_context is context

    def list_device(self) -> list[Context]:
        """The contexts on which it has values, or will have once its shape is known."""
        return self._list_contexts()

    def list_ctx(self) -> list[Context]:
        if not dialect.is_v1():
            warnings.warn(
                "Parameter.list_ctx has been renamed to Parameter.list_device", DeprecationWarning, stacklevel=2
            )
        return self._list_contexts()

    def _list_contexts(self) -> list[Context]:
        if self.is_initialized:
            return list(self._replicas.contexts)
        if self._deferred_init:
            return list(self._deferred_init[1])
        raise RuntimeError(f"Parameter '{self.name}' has not been initialized")

    def reset_device(self, device: Any) -> None:
        """Moves it to other contexts; on several, each gets a copy."""
        contexts = _listed(device)
        if self.is_initialized:
            self._replicas.place(self.mean(), contexts, self._grad_req)
        elif self._deferred_init:
            init, _, default_init, values = self._deferred_init
            self._deferred_init = (init, contexts, default_init, values)
        else:
            word = "context" if dialect.is_v1() else "device"
            raise ValueError(f"Cannot reset {word} for Parameter '{self.name}' because it has not been initialized.")

    def reset_ctx(self, ctx: Any) -> None:
        if not dialect.is_v1():
            warnings.warn(
                "Parameter.reset_ctx has been renamed to Parameter.reset_device", DeprecationWarning, stacklevel=2
            )
        self.reset_device(ctx)

    # -- what other libraries read --------------------------------------------------------------------

    @property
    def _data(self) -> list[Any] | None:
        return self.list_data() if self.is_initialized else None

    @property
    def _grad(self) -> list[Any] | None:
        return self.list_grad() if self.is_initialized and self.grad_req != "null" else None

    def _reduce(self) -> Any:
        return wrap_by_mode(self.mean())

    def _finish_deferred_init(self) -> None:
        self.finish_deferred_init()

    def _load_init(self, data: Any, ctx: Any, cast_dtype: bool = False, dtype_source: str = "current") -> None:
        self.load_values(data, ctx, cast_dtype, dtype_source)

    def var(self) -> NoReturn:
        raise refusal("Parameter.var", "symbols do not exist here; use data()")

    def row_sparse_data(self, row_id: Any) -> NoReturn:
        raise self._not_sparse("a copy", "row_sparse_data()")

    def list_row_sparse_data(self, row_id: Any) -> NoReturn:
        raise self._not_sparse("copies", "list_row_sparse_data()")

    def _not_sparse(self, what: str, method: str) -> RuntimeError:
        return RuntimeError(
            f"Cannot return {what} of Parameter {self.name} via {method} because its storage type is default. "
            "Please use data() instead."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"the Gluon front end has no Parameter.{name}; use .tensor, the underlying torch.nn.Parameter"
        )


def _check_stype(argument: str, stype: str) -> None:
    assert stype in _STYPES, (
        f"{argument} for Parameter must be one of 'default', 'row_sparse', or 'csr', but got '{stype}'"
    )
    if stype != "default":
        raise refusal(f"Parameter({argument}={stype!r})", "leave it out: sparse storage is not supported")


def _listed(contexts: Any) -> list[Context]:
    """One context or several as a list; None is the current one."""
    return (
        [as_context(context) for context in contexts] if isinstance(contexts, list | tuple) else [as_context(contexts)]
    )


def _tensor_of(data: Any) -> torch.Tensor:
    if isinstance(data, ArrayValues):
        return data.tensor.detach()
    return data.detach() if isinstance(data, torch.Tensor) else torch.as_tensor(numpy.asarray(data))
