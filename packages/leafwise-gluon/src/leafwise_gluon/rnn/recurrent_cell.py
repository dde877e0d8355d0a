"""The base classes of recurrent cells."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from leafwise_gluon.arrays.choosing import wrap_by_mode, wrap_like
from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError
from leafwise_gluon.block import Block, HybridBlock
from leafwise_gluon.context import as_context
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.rnn.sequences import formatted, is_array, last_valid, masked

_MODIFIED = (
    "After applying modifier cells (e.g. ZoneoutCell) the base cell cannot be called directly. Call the modifier cell "
    "instead."
)


class RecurrentCell(Block):
    """A cell computes one step: `output, states = cell(inputs, states)`. `unroll` runs it over a sequence.

    A subclass implements `state_info` and `forward`, or for MXNet 1.x `hybrid_forward`.
    """

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Forgets what belongs to one sequence. `unroll` calls this first."""
        self._init_counter = -1
        self._counter = -1
        for cell in self._modules.values():
            if isinstance(cell, RecurrentCell):
                cell.reset()

    # -- modifiers -----------------------------------------------------------------------------------------

    def modify(self) -> None:
        """Notes that a modifier cell has taken this cell over. There can be one only."""
        name = type(self).__name__ if self._scope is None else self.name
        assert not self._modified, f"Cell {name} is already modified. One cell cannot be modified twice"
        self._modified = True

    @contextmanager
    def as_unmodified(self) -> Iterator[None]:
        """For the modifier cell, which may call the cell that it has taken over."""
        before, self._modified = self._modified, False
        try:
            yield
        finally:
            self._modified = before

    def check_unmodified(self) -> None:
        assert not self._modified, _MODIFIED

    # -- states --------------------------------------------------------------------------------------------

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """Shape and layout of each state."""
        raise NotImplementedError()

    def begin_state(self, batch_size: int = 0, func: Any = None, **kwargs: Any) -> list[Any]:
        """The states before the first step: zeros, or what `func(shape=...)` returns."""
        self.check_unmodified()
        self._init_counter += len(self.state_info(batch_size))
        return initial_states(self.state_info(batch_size), func, kwargs)

    def states_for(self, inputs: Any, begin_state: Any, batch_size: int) -> Any:
        """The given states, or else those before the first step, of the kind and on the device of the inputs."""
        if begin_state is not None:
            return begin_state
        example = inputs if is_array(inputs) else inputs[0]
        if not isinstance(example, ArrayValues):
            return [plain(state).to(example.device) for state in self.begin_state(batch_size=batch_size)]
        with example.ctx:
            return [wrap_like(example, plain(state)) for state in self.begin_state(batch_size=batch_size)]

    # -- sequences -----------------------------------------------------------------------------------------

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: Any = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, Any]:
        """Runs the cell over `length` steps, and returns the outputs and the last states.

        `inputs` are an array with the axes of `layout`, or a list with an array for each step. Outputs are a list,
        with `merge_outputs` one array. With `valid_length`, the length of each sequence, outputs beyond it are zero.
        """
        self.reset()
        steps, axis, batch_size = formatted(length, inputs, layout, False)
        states = self.states_for(steps, begin_state, batch_size)
        outputs: Any = []
        all_states = []
        for step in steps[:length]:
            output, states = self(step, states)
            outputs.append(output)
            all_states.append(states)
        if valid_length is not None:
            states = [last_valid(column, valid_length) for column in zip(*all_states, strict=True)]
            outputs = masked(outputs, valid_length, axis, True)
        return formatted(length, outputs, layout, merge_outputs)[0], states

    def forward(self, inputs: Any, states: Any) -> Any:
        self._counter += 1
        return super().forward(inputs, states)


class HybridRecurrentCell(RecurrentCell, HybridBlock):
    """A recurrent cell that is a HybridBlock."""

    def is_compiled(self) -> bool:
        """MXNet 2.x never compiles a cell by itself."""
        return is_v1() and super().is_compiled()


def initial_states(infos: list[dict[str, Any]], func: Any, options: dict[str, Any]) -> list[Any]:
    """An array for each state: zeros, or what `func(shape=...)` returns. `options` are `dtype`, and `ctx` or `device`;
    in MXNet 1.x also other arguments of `func`."""
    if func is None:
        unknown = sorted(set(options) - _PLACING) if is_v1() else []
        if unknown:
            raise MXNetError(f"begin_state: Cannot find argument {unknown[0]!r}; give the func that has it")
        return [_zeros(**{**info, **options}) for info in infos]
    if is_v1():
        return [func(**{"shape": info["shape"], **_own_dtype(info), **options}) for info in infos]
    context = as_context(options.get("device", options.get("ctx")))
    facts = [{"dtype": "float32", **info, **options} for info in infos]  # MXNet 2.x passes these three
    return [func(shape=fact["shape"], device=context, dtype=fact["dtype"]) for fact in facts]


_PLACING = {"ctx", "device", "dtype", "shape"}


def _own_dtype(info: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": info["dtype"]} if "dtype" in info else {}


def _zeros(shape: Any, dtype: Any = None, ctx: Any = None, device: Any = None, **others: Any) -> Any:
    context = as_context(device if ctx is None else ctx)
    return wrap_by_mode(torch.zeros(shape, dtype=torch_dtype(dtype), device=context.torch_device), context)
