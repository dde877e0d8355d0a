"""Cells that change what another cell takes or gives, and DropoutCell."""

import numbers
from typing import Any

import torch

from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.ops.neural_norms import dropout
from leafwise_gluon.rnn.bidirectional import BidirectionalCell
from leafwise_gluon.rnn.recurrent_cell import HybridRecurrentCell
from leafwise_gluon.rnn.sequences import formatted, is_array, masked


class DropoutCell(HybridRecurrentCell):
    """Drops elements of its input in training. It has no state."""

    def __init__(self, rate: Any, axes: Any = (), prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        assert isinstance(rate, numbers.Real), "rate must be a number"
        self._rate: Any = rate
        self._axes = axes

    def _alias(self) -> str:
        return "dropout"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return []

    def forward(self, inputs: Any, states: Any) -> Any:
        return (_dropped(self, inputs, self._rate, self._axes) if self._rate > 0 else inputs), states

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
        inputs = formatted(length, inputs, layout, merge_outputs)[0]
        if is_array(inputs):
            outputs, states = self.forward(inputs, begin_state or [])
            return outputs, states
        return super().unroll(length, inputs, begin_state, layout, merge_outputs, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rate={self._rate}, axes={self._axes})"


class ModifierCell(HybridRecurrentCell):
    """The base class of cells that modify another one, `base_cell`. Its parameters are those of the base cell."""

    def __init__(self, base_cell: Any) -> None:
        base_cell.modify()
        super().__init__(prefix=base_cell.prefix + self._alias() if is_v1() else None)
        self.base_cell = base_cell

    @property
    def params(self) -> Any:
        return self.base_cell.params if self._scope is not None and "base_cell" in self._modules else super().params

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        infos: list[dict[str, Any]] = self.base_cell.state_info(batch_size)
        return infos

    def begin_state(self, batch_size: int = 0, func: Any = None, **kwargs: Any) -> list[Any]:
        self.check_unmodified()
        with self.base_cell.as_unmodified():
            states: list[Any] = self.base_cell.begin_state(batch_size=batch_size, func=func, **kwargs)
        return states

    def infer_shape(self, *args: Any) -> None:
        self.base_cell.infer_shape(*args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_cell})"


class ZoneoutCell(ModifierCell):
    """Elements of the output and of the states keep their previous values in training, with given probabilities."""

    def __init__(self, base_cell: Any, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        assert not isinstance(base_cell, BidirectionalCell), (
            "BidirectionalCell doesn't support zoneout since it doesn't support step. Please add ZoneoutCell to the "
            "cells underneath instead."
        )
        super().__init__(base_cell)
        self.zoneout_outputs, self.zoneout_states = zoneout_outputs, zoneout_states

    def _alias(self) -> str:
        return "zoneout"

    def reset(self) -> None:
        super().reset()
        self._prev_output: Any = None

    def forward(self, inputs: Any, states: Any) -> Any:
        output, new_states = self.base_cell(inputs, states)
        if self.zoneout_outputs:
            output = self._mixed(self.zoneout_outputs, output, self._prev_output)
        if self.zoneout_states:
            pairs = zip(new_states, states, strict=True)
            new_states = [self._mixed(self.zoneout_states, new, old) for new, old in pairs]
        self._prev_output = output
        return output, new_states

    def _mixed(self, rate: float, new: Any, old: Any) -> Any:
        tensor = plain(new)
        before = torch.zeros_like(tensor) if old is None else plain(old)
        mask = plain(_dropped(self, wrap_like(new, torch.ones_like(tensor)), rate, ()))
        return wrap_like(new, torch.where(mask != 0, tensor, before))

    def __repr__(self) -> str:
        rates = f"p_out={self.zoneout_outputs}, p_state={self.zoneout_states}"
        return f"{type(self).__name__}({rates}, {self.base_cell})"


class ResidualCell(ModifierCell):
    """Adds the input of a cell to its output."""

    def forward(self, inputs: Any, states: Any) -> Any:
        output, states = self.base_cell(inputs, states)
        return output + inputs, states

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
        with self.base_cell.as_unmodified():
            outputs, states = self.base_cell.unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        merge = is_array(outputs) if merge_outputs is None else merge_outputs
        inputs, axis, _ = formatted(length, inputs, layout, merge)
        if valid_length is not None:
            inputs = masked(inputs, valid_length, axis, merge)
        if merge:
            return outputs + inputs, states
        return [output + step for output, step in zip(outputs, inputs, strict=True)], states


class VariationalDropoutCell(ModifierCell):
    """Drops the same elements at every step of a sequence: of the input, of the first state and of the output."""

    def __init__(
        self, base_cell: Any, drop_inputs: float = 0.0, drop_states: float = 0.0, drop_outputs: float = 0.0
    ) -> None:
        assert not drop_states or not isinstance(base_cell, BidirectionalCell), (
            "BidirectionalCell doesn't support variational state dropout. Please add VariationalDropoutCell to the "
            "cells underneath instead."
        )
        super().__init__(base_cell)
        self.drop_inputs, self.drop_states, self.drop_outputs = drop_inputs, drop_states, drop_outputs

    def _alias(self) -> str:
        return "vardrop"

    def reset(self) -> None:
        super().reset()
        self.drop_inputs_mask: Any = None
        self.drop_states_mask: Any = None
        self.drop_outputs_mask: Any = None

    def forward(self, inputs: Any, states: Any) -> Any:
        # MXNet draws the mask of the states before that of the inputs.
        if self.drop_states and self.drop_states_mask is None:
            self.drop_states_mask = self._mask(states[0], self.drop_states)
        if self.drop_inputs and self.drop_inputs_mask is None:
            self.drop_inputs_mask = self._mask(inputs, self.drop_inputs)
        if self.drop_states:
            states = [states[0] * self.drop_states_mask, *states[1:]]
        if self.drop_inputs:
            inputs = inputs * self.drop_inputs_mask
        output, states = self.base_cell(inputs, states)
        if self.drop_outputs and self.drop_outputs_mask is None:
            self.drop_outputs_mask = self._mask(output, self.drop_outputs)
        return (output * self.drop_outputs_mask if self.drop_outputs else output), states

    def _mask(self, like: Any, rate: float) -> Any:
        return _dropped(self, wrap_like(like, torch.ones_like(plain(like))), rate, ())

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: Any = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, Any]:
        if self.drop_states:
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        self.reset()
        inputs, axis, batch_size = formatted(length, inputs, layout, True)
        states = self.states_for(inputs, begin_state, batch_size)
        if self.drop_inputs:
            inputs = _dropped(self, inputs, self.drop_inputs, (axis,))
        with self.base_cell.as_unmodified():
            outputs, states = self.base_cell.unroll(length, inputs, states, layout, True, valid_length)
        if self.drop_outputs:
            outputs = _dropped(self, outputs, self.drop_outputs, (axis,))
        merge = True if merge_outputs is None else merge_outputs
        outputs = formatted(length, outputs, layout, merge)[0]
        return (outputs if valid_length is None else masked(outputs, valid_length, axis, merge)), states

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out = {self.drop_outputs}, p_state = {self.drop_states})"


def _dropped(cell: Any, inputs: Any, rate: float, axes: Any) -> Any:
    """The inputs after dropout. Arrays follow `autograd.record`, and tensors the mode of the PyTorch module."""
    is_tensor = not isinstance(inputs, ArrayValues)
    training = bool(cell.training) if is_tensor else STATE.training
    return wrap_like(inputs, dropout(plain(inputs), rate, axes=axes, training=training, from_torch=is_tensor))
