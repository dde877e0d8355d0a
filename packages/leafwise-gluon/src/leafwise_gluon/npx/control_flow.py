"""Loops and branches as functions. PyTorch needs none of them; they run as plain Python does."""

from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import ArrayValues, plain

__all__ = ["cond", "foreach", "while_loop"]


def foreach(body: Callable[[Any, Any], tuple[Any, Any]], data: Any, init_states: Any) -> tuple[Any, Any]:
    """Calls `output, states = body(element, states)` for each element of `data` along its first axis. Returns the
    outputs, stacked, and the last states.

    >>> from leafwise_gluon import np, npx
    >>> npx.foreach(lambda x, total: (x + total, x + total), np.arange(4), np.zeros(()))
    (array([0., 1., 3., 6.]), array(6.))
    """
    is_array = isinstance(data, ArrayValues)
    states, outputs = init_states, []
    for step in range(len(data) if is_array else len(data[0])):
        element = data[step] if is_array else [array[step] for array in data]
        output, states = body(element, states)
        outputs.append(output)
    return _stacked(outputs), states


def while_loop(
    cond: Callable[..., Any], func: Callable[..., tuple[Any, Any]], loop_vars: Any, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """Calls `output, loop_vars = func(*loop_vars)` while `cond(*loop_vars)` is true. Returns the outputs, stacked, and
    the last variables. The stacks have `max_iterations` rows; those after the last step are zeros, in MXNet arbitrary.
    """
    if max_iterations is None:
        raise ValueError("max_iterations should be specified")
    if not len(loop_vars):
        raise ValueError("loop_vars should contain at least one element")
    is_array = isinstance(loop_vars, ArrayValues)
    variables = [loop_vars] if is_array else list(loop_vars)
    outputs: list[Any] = []
    while len(outputs) < int(max_iterations) and bool(cond(*variables)):
        output, new = func(*variables)
        new = [] if new is None else [new] if isinstance(new, ArrayValues) else list(new)
        if len(new) != len(variables):
            raise ValueError("The length of loop_vars should be consistent during the loop")
        variables = new
        outputs.append([] if output is None else list(output) if isinstance(output, tuple) else output)
    missing = int(max_iterations) - len(outputs)
    return (_stacked(outputs, missing) if outputs else []), (variables[0] if is_array else variables)


def cond(
    pred: Any, then_func: Callable[..., Any], else_func: Callable[..., Any], inputs: Any = (), name: str = "cond"
) -> Any:
    """`then_func(*inputs)` if `pred` is true, otherwise `else_func(*inputs)`; `pred` may be a function of them."""
    arguments = [inputs] if isinstance(inputs, ArrayValues) else list(inputs)
    chosen = pred(*arguments) if callable(pred) else pred
    return then_func(*arguments) if bool(chosen) else else_func(*arguments)


def _stacked(outputs: list[Any], missing: int = 0) -> Any:
    """One array of all steps for each output; outputs are arrays, or nested lists of arrays."""
    first = outputs[0]
    if isinstance(first, list | tuple):
        return [_stacked([output[number] for output in outputs], missing) for number in range(len(first))]
    stack = torch.stack([plain(output) for output in outputs])
    if missing:
        stack = torch.cat([stack, stack.new_zeros((missing, *stack.shape[1:]))])
    return wrap_like(first, stack)
