"""Roles and axes of the layers of Flax NNX and Equinox, for the table in `core.role_table`."""

from typing import Any

from leafwise.core.home import Axes
from leafwise.core.role_table import Roles, add_rows
from leafwise.core.role_table import role_of as role_in_table
from leafwise.homes.jax.arrays import is_key_dtype, key_role

_BIAS = ("bias", ("out",))

_KERNEL: Roles = {"kernel": ("linear.weight", ("in", "out")), "bias": _BIAS}
_SCALE: Roles = {
    "scale": ("norm.scale", ("*features",)),
    "bias": ("norm.bias", ("*features",)),
    "mean": ("norm.mean", ("*features",)),
    "var": ("norm.variance", ("*features",)),
}

add_rows(
    [
        ("flax.nnx.Linear", _KERNEL),
        ("flax.nnx.LinearGeneral", _KERNEL),
        ("flax.nnx.Conv", {"kernel": ("conv.weight", ("*space", "in", "out")), "bias": _BIAS}),
        ("flax.nnx.ConvTranspose", {"kernel": ("conv_transpose.weight", ("*space", "in", "out")), "bias": _BIAS}),
        ("flax.nnx.Embed", {"embedding": ("embedding.table", ("vocab", "features"))}),
        *((f"flax.nnx.{norm}", _SCALE) for norm in ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm")),
        ("flax.nnx.PReLU", {"negative_slope": ("activation.slope", ())}),
    ]
)

_WEIGHT: Roles = {"weight": ("linear.weight", ("out", "in")), "bias": _BIAS}
_NORM: Roles = {"weight": ("norm.scale", ("*features",)), "bias": ("norm.bias", ("*features",))}
_CELL: Roles = {
    "weight_ih": ("rnn.weight_ih", ("out", "in")),
    "weight_hh": ("rnn.weight_hh", ("out", "in")),
    "bias": ("rnn.bias", ("out",)),
    "bias_n": ("rnn.bias_hh", ("out",)),
}

add_rows(
    [
        ("equinox.nn.Linear", _WEIGHT),
        (
            "equinox.nn.ConvTranspose",
            {"weight": ("conv_transpose.weight", ("out", "in", "*space")), "bias": ("bias", ("out", "*space"))},
        ),
        (
            "equinox.nn.Conv",
            {"weight": ("conv.weight", ("out", "in", "*space")), "bias": ("bias", ("out", "*space"))},
        ),
        ("equinox.nn.Embedding", {"weight": ("embedding.table", ("vocab", "features"))}),
        *((f"equinox.nn.{norm}", _NORM) for norm in ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm")),
        ("equinox.nn.LSTMCell", _CELL),
        ("equinox.nn.GRUCell", _CELL),
        ("equinox.nn.PReLU", {"negative_slope": ("activation.slope", ("*features",))}),
    ]
)


def role_of(owner: Any, name: str, value: Any) -> tuple[str | None, Axes]:
    """The role and the axes of a leaf of a layer."""
    if is_key_dtype(value.dtype):
        return key_role(value), None
    return role_in_table(type(owner), name, len(value.shape))
