"""The functions of `nd` that are operations over tensors, and those that take numbers, too."""

from collections.abc import Callable
from typing import Any

from leafwise_gluon.arrays.legacy_calls import exposed
from leafwise_gluon.ops.legacy import (
    binary,
    elementwise,
    pictures,
    products,
    reductions,
    sequences,
    shaping,
    sorting,
    updates,
)

Function = Callable[..., Any]

_OPERATIONS: dict[Any, str] = {
    elementwise: """abs arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil clip cos cosh degrees erf erfinv exp
        expm1 fix floor gamma gammaln log log10 log1p log2 logical_not negative radians rcbrt reciprocal relu rint round
        rsqrt sigmoid sign sin sinh softsign sqrt square tan tanh trunc hard_sigmoid smooth_l1 cast amp_cast
        cast_storage identity stop_gradient make_loss MakeLoss zeros_like ones_like shape_array size_array all_finite
        multi_all_finite multi_sum_sq""",
    binary: "add_n where",
    reductions: """sum mean prod max min nansum nanprod norm argmax argmin argmax_channel moments cumsum L2Normalization
        softmax_cross_entropy""",
    sorting: """sort argsort topk take batch_take pick one_hot gather_nd scatter_nd ravel_multi_index unravel_index
        fill_element_0index""",
    shaping: """reshape reshape_like flatten expand_dims squeeze transpose swapaxes flip tile repeat diag broadcast_to
        broadcast_like broadcast_axis concat stack split split_v2 crop slice_axis slice_like pad""",
    pictures: "Crop depth_to_space space_to_depth im2col col2im",
    updates: "reset_arrays",
    products: "dot batch_dot khatri_rao",
    sequences: "SequenceMask SequenceLast SequenceReverse",
}
_OTHER_NAMES = {
    "BlockGrad": "stop_gradient",
    "Cast": "cast",
    "Concat": "concat",
    "ElementWiseSum": "add_n",
    "Flatten": "flatten",
    "Pad": "pad",
    "Reshape": "reshape",
    "SliceChannel": "split",
    "SwapAxis": "swapaxes",
    "broadcast_axes": "broadcast_axis",
    "choose_element_0index": "pick",
    "slice": "crop",
    "max_axis": "max",
    "min_axis": "min",
    "reverse": "flip",
    "sum_axis": "sum",
}
_OF_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda lhs, rhs: lhs + rhs,
    "subtract": lambda lhs, rhs: lhs - rhs,
    "multiply": lambda lhs, rhs: lhs * rhs,
    "divide": lambda lhs, rhs: lhs / rhs,
    "true_divide": lambda lhs, rhs: lhs / rhs,
    "modulo": lambda lhs, rhs: lhs % rhs,
    "power": lambda lhs, rhs: lhs**rhs,
    "maximum": lambda lhs, rhs: max(lhs, rhs),
    "minimum": lambda lhs, rhs: min(lhs, rhs),
    "equal": lambda lhs, rhs: 1 if lhs == rhs else 0,
    "not_equal": lambda lhs, rhs: 1 if lhs != rhs else 0,
    "greater": lambda lhs, rhs: 1 if lhs > rhs else 0,
    "greater_equal": lambda lhs, rhs: 1 if lhs >= rhs else 0,
    "lesser": lambda lhs, rhs: 1 if lhs < rhs else 0,
    "lesser_equal": lambda lhs, rhs: 1 if lhs <= rhs else 0,
    "logical_and": lambda lhs, rhs: 1 if lhs and rhs else 0,
    "logical_or": lambda lhs, rhs: 1 if lhs or rhs else 0,
    "logical_xor": lambda lhs, rhs: 1 if bool(lhs) ^ bool(rhs) else 0,
}


def _of_arrays_or_numbers(name: str) -> Function:
    operation = "divide" if name == "true_divide" else name

    def function(lhs: Any, rhs: Any) -> Any:
        if binary.is_number(lhs) and binary.is_number(rhs):
            return _OF_NUMBERS[name](lhs, rhs)
        return on_arrays(lhs, rhs)

    def compute(lhs: Any, rhs: Any) -> Any:
        return binary.binary(operation, lhs, rhs)

    on_arrays = exposed(compute, name)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of arrays, with broadcasting, or of an array and a number."
    return function


SINCE_2 = {name: exposed(getattr(elementwise, name)) for name in ("digamma", "log_sigmoid", "mish")}


def operations() -> dict[str, Function]:
    """Every function that is an operation, by its name in MXNet; those that only MXNet 2.x has are in `SINCE_2`."""
    by_name = {name: exposed(getattr(module, name)) for module, names in _OPERATIONS.items() for name in names.split()}
    for operation in (*binary.BROADCASTING, *binary.SAME_SHAPE):
        by_name[operation.__name__] = exposed(operation)
    by_name |= {name: by_name[original] for name, original in _OTHER_NAMES.items()}
    return by_name | {name: _of_arrays_or_numbers(name) for name in _OF_NUMBERS}
