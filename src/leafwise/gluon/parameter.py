"""`mxnet.gluon.Parameter`: a handle on a `torch.nn.Parameter` whose shape may be inferred later."""

import warnings
from typing import Any

import numpy
import torch
from torch.nn.parameter import UninitializedParameter

from leafwise.gluon import init as initializers
from leafwise.gluon.arrays.dtypes import numpy_dtype, torch_dtype
from leafwise.gluon.arrays.gradients import check_grad_req
from leafwise.gluon.arrays.ndarray import ndarray, wrap
from leafwise.gluon.arrays.values import ArrayValues, plain
from leafwise.gluon.base import DeferredInitializationError


class Parameter:
    """A Gluon parameter. `tensor` is the underlying PyTorch parameter, which always stays the same object.

    >>> from leafwise.gluon import Parameter
    >>> p = Parameter("weight", shape=(2, 2))
    >>> p.initialize(init="ones")
    >>> p.data()
    array([[1., 1.],
           [1., 1.]])
    >>> p.grad()
    array([[0., 0.],
           [0., 0.]])
    """

    _array: ndarray | None = None  # the last result of `data()`

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
    ) -> None:
        self.name = name
        self.lr_mult, self.wd_mult, self.init = lr_mult, wd_mult, init
        self._allow_deferred_init = allow_deferred_init
        self._dtype = dtype
        self._shape = None if shape is None else _sizes(shape)
        self._initialized = False
        self._deferred: tuple[Any, Any] | None = None  # the initializer, and values set before the shape was known
        self.tensor: Any = UninitializedParameter(dtype=torch_dtype(dtype))  # type: ignore[call-arg]
        self._grad_req = "null"
        self.grad_req = grad_req if differentiable else "null"

    def __repr__(self) -> str:
        return f"Parameter (shape={self.shape}, dtype={self.dtype})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_array"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Copies of tensors lose attributes that were set on them.
        self.__dict__.update(state)
        self.tensor.grad_req = self._grad_req

    # -- shape, dtype and grad_req -------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape; unknown dimensions are -1 until the first forward pass."""
        return None if self._shape is None else tuple(-1 if size == 0 else size for size in self._shape)

    @shape.setter
    def shape(self, new: Any) -> None:
        sizes = _sizes(new)
        self._check_shape(sizes)
        self._shape = sizes

    def _check_shape(self, new: tuple[int, ...]) -> None:
        mine = self.shape
        if mine is None:
            return
        fits = len(mine) == len(new) and all(a in (-1, 0, b) for a, b in zip(mine, new, strict=True))
        assert fits, f"Expected shape {new} is incompatible with given shape {mine} for Parameter {self.name}."

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
        """Changes the dtype and converts the values."""
        self._dtype = dtype
        with torch._C.DisableTorchFunctionSubclass():
            self.tensor.grad = None
            self.tensor.data = self.tensor.data.to(torch_dtype(dtype))

    @property
    def grad_req(self) -> str:
        """'write' overwrites the gradient at each backward, 'add' adds to it, 'null' computes no gradient."""
        return self._grad_req

    @grad_req.setter
    def grad_req(self, grad_req: str) -> None:
        check_grad_req(grad_req)
        self._grad_req = grad_req
        self.tensor.grad_req = grad_req
        with torch._C.DisableTorchFunctionSubclass():  # an UninitializedParameter refuses most functions
            self.tensor.requires_grad_(grad_req != "null")
            self.tensor.grad = None

    def _shape_is_known(self) -> bool:
        return self._shape is not None and all(size > 0 for size in self._shape)

    # -- initial values ------------------------------------------------------------------------------

    def initialize(
        self,
        init: Any = None,
        device: Any = None,
        default_init: Any = None,
        force_reinit: bool = False,
        ctx: Any = None,
    ) -> None:
        """Draws initial values: now, or at the first forward pass if the shape is not known yet."""
        if self._initialized and not force_reinit:
            warnings.warn(
                f"Parameter '{self.name}' is already initialized, ignoring. Set force_reinit=True to re-initialize.",
                stacklevel=2,
            )
            return
        chosen = init if init is not None else self.init if self.init is not None else default_init
        chosen = initializers.create(initializers.Uniform() if chosen is None else chosen)
        if self._shape_is_known():
            self._fill(chosen)
            return
        if not self._allow_deferred_init:
            raise ValueError(f"Cannot initialize Parameter '{self.name}' because it has invalid shape: {self.shape}.")
        self._deferred = (chosen, None)

    def finish_deferred_init(self) -> None:
        """Draws the values that `initialize` deferred; the shape must be known by now."""
        if self._deferred is None:
            return
        chosen, values = self._deferred
        if not self._shape_is_known():
            raise ValueError(
                f"Cannot initialize Parameter '{self.name}' because it has invalid shape: {self.shape}. "
                "Please specify in_units, in_channels, etc for `Block`s."
            )
        self._fill(chosen if values is None else initializers.Constant(values))

    def _fill(self, chosen: initializers.Initializer) -> None:
        assert self._shape is not None
        values = torch.zeros(self._shape, dtype=torch_dtype(self.dtype))
        chosen(self.name, wrap(values))
        if isinstance(self.tensor, UninitializedParameter):
            self.tensor.materialize(self._shape, dtype=values.dtype)
        with torch.no_grad():
            self.tensor.copy_(values)
        self.tensor.grad = None
        self._initialized, self._deferred = True, None

    def set_data(self, data: Any) -> None:
        """Replaces the values in place. While initialization is deferred, keeps them until the first forward pass."""
        values = plain(data).detach() if isinstance(data, ArrayValues | torch.Tensor) else torch.as_tensor(data)
        self.shape = tuple(values.shape)
        if self._initialized:
            with torch.no_grad():
                self.tensor.copy_(values)
        else:
            assert self._deferred is not None, f"Parameter '{self.name}' has not been initialized"
            self._deferred = (self._deferred[0], values.clone())

    # -- values and gradients ------------------------------------------------------------------------

    @property
    def is_initialized(self) -> bool:
        """Whether it has values."""
        return self._initialized

    @property
    def is_deferred(self) -> bool:
        """Whether it gets its values at the first forward pass, once its shape is known."""
        return self._deferred is not None

    def check_initialized(self) -> None:
        """Raises MXNet's error if it has no values yet."""
        if self._initialized:
            return
        if self._deferred is not None:
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

    def data(self, device: Any = None, ctx: Any = None) -> ndarray:
        """The live array: writing to it changes the parameter."""
        self.check_initialized()
        # The same object each time, until `net.double()` or a load replaces the parameter's tensor.
        if self._array is None or self._array.tensor is not self.tensor:
            self._array = wrap(self.tensor)
        return self._array

    def grad(self, device: Any = None, ctx: Any = None) -> ndarray:
        """The gradient; zeros before any backward."""
        self.check_initialized()
        if self._grad_req == "null":
            raise RuntimeError(f"Cannot get gradient array for Parameter '{self.name}' because grad_req='null'")
        if self.tensor.grad is None:
            self.tensor.grad = torch.zeros_like(self.tensor, requires_grad=False)
        return wrap(self.tensor.grad)

    def list_data(self) -> list[ndarray]:
        return [self.data()]

    def list_grad(self) -> list[ndarray]:
        return [self.grad()]

    def zero_grad(self) -> None:
        """Drops the gradient; `grad()` is zeros again."""
        self.tensor.grad = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"the Gluon front end has no Parameter.{name}; use .tensor, the underlying torch.nn.Parameter"
        )


def _sizes(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, int) else tuple(int(size) for size in shape)
