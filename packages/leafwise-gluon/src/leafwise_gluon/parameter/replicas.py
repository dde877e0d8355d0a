"""The tensors of a parameter: one for each context that it was initialized on."""

from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from leafwise_gluon import dialect
from leafwise_gluon.arrays.choosing import wrap_by_mode
from leafwise_gluon.context import CPU0, Context, context_of, current_context
from leafwise_gluon.modes import is_np_array


class Replicas:
    """The values of a parameter on one or more contexts. `first` is the PyTorch parameter of the Block.

    `first` always stays the same object, so that optimizers may be made before the shape is known. Arrays that were
    given out keep their values when the parameter is initialized again or cast, because MXNet makes new arrays then.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.first: Any = UninitializedParameter(  # type: ignore[call-arg]
            requires_grad=dtype.is_floating_point, dtype=dtype
        )
        self.others: list[Any] = []
        self.has_values = False  # `place` was called, perhaps with an empty list of contexts
        self._contexts: list[Context] = []
        self.only_context: Context | None = None  # the context, if there is just one
        self._arrays: dict[tuple[int, bool], Any] = {}  # what `array` returned, by position and NumPy mode
        self._is_dropped = False  # whether `first` holds values that `drop` has forgotten

    @property
    def tensors(self) -> list[Any]:
        return [self.first, *self.others]

    @property
    def placed(self) -> list[Any]:
        """The tensors on the contexts; none before there are values."""
        return self.tensors if self._contexts else []

    @property
    def contexts(self) -> list[Context]:
        """The contexts, in the order in which they were given; empty before there are values."""
        if len(self._contexts) == 1 and self._contexts[0].torch_device.type != self.first.device.type:
            self._contexts = [context_of(self.first)]  # PyTorch has moved it: `net.cuda()`
            self.only_context = self._contexts[0]
        return self._contexts

    def place(self, values: torch.Tensor, contexts: list[Context], grad_req: str) -> None:
        """Copies values to every context. They replace what was there, also its shape and dtype."""
        self._let_go()
        is_frozen = not self.first.requires_grad  # by PyTorch or leafwise: it stays frozen
        self.has_values = True
        if not contexts:  # MXNet accepts an empty list, such as that of all GPUs where there are none
            self._contexts, self.only_context, self.others = [], None, []
            return
        copies = [values.detach().to(context.torch_device, copy=True) for context in contexts]
        if isinstance(self.first, UninitializedParameter):
            self.first.materialize(copies[0].shape, device=copies[0].device, dtype=copies[0].dtype)
        self._replace(self.first, copies[0])
        self.others = [torch.nn.Parameter(copy, requires_grad=False) for copy in copies[1:]]
        # cpu(0) is one object, so that the usual context is compared quickly.
        self._contexts = [CPU0 if context == CPU0 else context for context in contexts]
        self.only_context = self._contexts[0] if len(contexts) == 1 else None
        self._is_dropped = False
        self.require_gradients(grad_req)
        if is_frozen:
            self.first.requires_grad_(False)

    @property
    def is_filled_by_pytorch(self) -> bool:
        """Whether a tool for PyTorch modules, such as `lw.load`, gave `first` its shape and values before `place`."""
        return not self._contexts and not self._is_dropped and not isinstance(self.first, UninitializedParameter)

    def drop(self) -> None:
        """Forgets the values, until `place` gives new ones."""
        self._let_go()
        self._is_dropped = not isinstance(self.first, UninitializedParameter)
        self.has_values = False
        self._contexts, self.only_context, self.others = [], None, []

    def require_gradients(self, grad_req: str) -> None:
        """Starts again without gradients, and says how backward writes them."""
        for tensor in self.tensors:
            with torch._C.DisableTorchFunctionSubclass():  # an UninitializedParameter refuses most functions
                tensor.requires_grad_(grad_req != "null" and tensor.dtype.is_floating_point)
                tensor.grad = None
        self.mark(grad_req)

    def mark(self, grad_req: str) -> None:
        """Notes on the tensors how backward writes their gradients; copies of tensors lose such notes."""
        for tensor in self.tensors:
            tensor.grad_req = grad_req

    def cast(self, dtype: torch.dtype) -> None:
        self._let_go()
        for tensor in self.tensors:
            with torch._C.DisableTorchFunctionSubclass():
                grad, tensor.grad = tensor.grad, None
                was_floating = tensor.dtype.is_floating_point
                if not dtype.is_floating_point:
                    tensor.requires_grad_(False)
                tensor.data = tensor.data.to(dtype)
                if dtype.is_floating_point and not was_floating:
                    tensor.requires_grad_(tensor.grad_req != "null")
                if grad is not None and dtype.is_floating_point:
                    tensor.grad = grad.to(dtype)

    def index(self, context: Any, name: str) -> int:
        """The position of a context: None is the current one, or the only one."""
        contexts = self.contexts
        if context is None:
            if len(contexts) == 1:
                return 0
            context = current_context()
        for index, mine in enumerate(contexts):
            if mine is context or _slot(mine) == _slot(context):
                return index
        word = "context" if dialect.is_v1() else "device"
        raise RuntimeError(
            f"Parameter '{name}' was not initialized on {word} {context}. It was only initialized on {contexts}."
        )

    def array(self, index: int) -> Any:
        """The live array; the same object each time, until PyTorch replaces the tensor."""
        tensor, key = self.tensors[index], (index, is_np_array())
        array = self._arrays.get(key)
        if array is None or array.tensor is not tensor:
            array = self._arrays[key] = wrap_by_mode(tensor, self.contexts[index])
        return array

    def gradient(self, index: int) -> Any:
        """The gradient as an array; zeros before any backward."""
        tensor = self.tensors[index]
        if tensor.grad is None:
            tensor.grad = torch.zeros_like(tensor, requires_grad=False)
        return wrap_by_mode(tensor.grad, self.contexts[index])

    def mean(self) -> torch.Tensor:
        """The mean over the contexts, as MXNet saves it; a copy."""
        copies = [tensor.detach().to("cpu", copy=True) for tensor in self.tensors]
        total: torch.Tensor = copies[0]
        for copy in copies[1:]:
            total += copy
        return total if len(copies) == 1 else total / len(copies)

    def _let_go(self) -> None:
        for (index, _), array in self._arrays.items():
            if array.tensor is self.tensors[index]:
                array.tensor = array.tensor.detach()
        self._arrays.clear()

    @staticmethod
    def _replace(tensor: Any, values: torch.Tensor) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            tensor.grad = None
            tensor.requires_grad_(False)
            tensor.data = values

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": {}}


def _slot(context: Context) -> tuple[int, int]:
    """cpu and cpu_pinned of one number have the same values, as in MXNet."""
    return context.device_typeid & 1, context.device_id
