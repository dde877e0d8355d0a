"""BidirectionalCell."""

from typing import Any

from leafwise_gluon.dialect import is_v1
from leafwise_gluon.rnn.recurrent_cell import HybridRecurrentCell
from leafwise_gluon.rnn.sequences import formatted, is_array, joined, masked, reversed_steps, stacked


class BidirectionalCell(HybridRecurrentCell):
    """Runs one cell from the start of a sequence and another from its end, and joins their outputs. It has only
    `unroll`."""

    def __init__(self, l_cell: Any, r_cell: Any, output_prefix: str = "bi_") -> None:
        super().__init__(prefix="" if is_v1() else None)
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [info for cell in self.cells() for info in cell.state_info(batch_size)]

    def begin_state(self, batch_size: int = 0, func: Any = None, **kwargs: Any) -> list[Any]:
        self.check_unmodified()
        return [state for cell in self.cells() for state in cell.begin_state(batch_size, func, **kwargs)]

    def cells(self) -> list[Any]:
        return list(self._modules.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("Bidirectional cannot be stepped. Please use unroll")

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
        steps, axis, batch_size = formatted(length, inputs, layout, False)
        states = self.states_for(steps, begin_state, batch_size)
        forth, back = self.cells()
        count = len(forth.state_info(batch_size))
        turned = reversed_steps(steps, valid_length)
        left, left_states = forth.unroll(length, steps, states[:count], layout, merge_outputs, valid_length)
        right, right_states = back.unroll(length, turned, states[count:], layout, False, valid_length)
        right = reversed_steps(right, valid_length)
        merge = is_array(left) if merge_outputs is None else merge_outputs
        left = formatted(None, left, layout, merge)[0]
        if merge:
            outputs: Any = joined([left, stacked(right, axis)], 2)
        else:
            outputs = [joined(pair, 1) for pair in zip(left, right, strict=True)]
        if valid_length is not None:
            outputs = masked(outputs, valid_length, axis, merge)
        return outputs, [*left_states, *right_states]

    def infer_shape(self, *args: Any) -> None:
        if isinstance(args[0], int):
            for cell in self.cells():
                cell.infer_shape(args[0], args[1], True)

    def __repr__(self) -> str:
        forth, back = self.cells()
        return f"{type(self).__name__}(forward={forth}, backward={back})"
