"""Stacks of cells: SequentialRNNCell and HybridSequentialRNNCell."""

from collections.abc import Iterator
from typing import Any

from leafwise_gluon.rnn.bidirectional import BidirectionalCell
from leafwise_gluon.rnn.recurrent_cell import HybridRecurrentCell, RecurrentCell
from leafwise_gluon.rnn.sequences import formatted
from leafwise_gluon.text import indented


class CellStack(RecurrentCell):
    """Cells that are called one after another. The states are those of all cells in one list."""

    def add(self, cell: Any) -> None:
        """Adds a cell at the end."""
        self.register_child(cell)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [info for cell in self.cells() for info in cell.state_info(batch_size)]

    def begin_state(self, batch_size: int = 0, func: Any = None, **kwargs: Any) -> list[Any]:
        self.check_unmodified()
        return [state for cell in self.cells() for state in cell.begin_state(batch_size, func, **kwargs)]

    def cells(self) -> list[Any]:
        return list(self._modules.values())

    def _with_states(self, states: Any) -> Iterator[tuple[Any, Any]]:
        """Each cell with its part of the states."""
        start = 0
        for cell in self.cells():
            count = len(cell.state_info())
            yield cell, states[start : start + count]
            start += count

    def forward(self, inputs: Any, states: Any) -> Any:
        self._counter += 1
        assert not any(isinstance(cell, BidirectionalCell) for cell in self.cells())
        last: list[Any] = []
        for cell, part in self._with_states(states):
            inputs, part = cell(inputs, part)
            last += part
        return inputs, last

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: Any = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, Any]:
        self.reset()
        inputs, _, batch_size = formatted(length, inputs, layout, None)
        states = self.states_for(inputs, begin_state, batch_size)
        last: list[Any] = []
        for number, (cell, part) in enumerate(self._with_states(states), start=1):
            merge = merge_outputs if number == len(self) else None
            inputs, part = cell.unroll(length, inputs, part, layout, merge, valid_length)
            last += part
        return inputs, last

    def infer_shape(self, *args: Any) -> None:
        """In MXNet 2.x, called with a position, the input of the stack, and whether the layers are bidirectional."""
        if isinstance(args[0], int):
            for number, cell in enumerate(self.cells()):
                cell.infer_shape(number, *args[1:])

    def __getitem__(self, index: int) -> Any:
        return self._modules[str(index)]

    def __len__(self) -> int:
        return len(self._modules)

    def __repr__(self) -> str:
        cells = "\n".join(f"({name}): {indented(repr(cell))}" for name, cell in self._modules.items())
        return f"{type(self).__name__}(\n{cells}\n)"


class SequentialRNNCell(CellStack):
    """Calls its cells one after another.

    >>> from leafwise_gluon import np, rnn
    >>> stack = rnn.SequentialRNNCell()
    >>> stack.add(rnn.GRUCell(5, input_size=2))
    >>> stack.add(rnn.LSTMCell(3, input_size=5))
    >>> stack.initialize()
    >>> outputs, states = stack.unroll(4, np.ones((1, 4, 2)), merge_outputs=True)
    >>> outputs.shape, len(states)
    ((1, 4, 3), 3)
    """


class HybridSequentialRNNCell(CellStack, HybridRecurrentCell):
    """Calls its cells, all of them hybrid, one after another."""

    def infer_shape(self, *args: Any) -> None:
        # Unlike SequentialRNNCell, it may be one of the two cells of a BidirectionalCell, but is not bidirectional.
        super().infer_shape(*args[:-1], False)
