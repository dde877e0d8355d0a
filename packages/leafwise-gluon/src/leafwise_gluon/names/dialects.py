"""What differs between the two dialects, MXNet 1.9.1 and MXNet 2.0.0b1. docs/gluon.md is made from it."""

from typing import NamedTuple


class DialectDifference(NamedTuple):
    """One difference between the dialects."""

    what: str
    in_1: str
    in_2: str


DIALECTS = (
    DialectDifference("NumPy mode", "off until `npx.set_np()`", "on from the start"),
    DialectDifference("name of a parameter", "`dense0_weight`, with the prefix of its block", "`weight`"),
    DialectDifference("`collect_params()`", "a `ParameterDict` by name: `dense0_weight`", "a dict by path: `0.weight`"),
    DialectDifference("`_children`", "blocks", "weak references: call `child()`"),
    DialectDifference("a dimension that is not known yet", "0, `None` in texts", "-1"),
    DialectDifference(
        "sharing parameters", "`Dense(8, params=other.params)`", "`share_parameters(other.collect_params())`"
    ),
    DialectDifference("parameters of a block of your own", "`self.params.get(name, shape=…)`", "`gluon.Parameter(…)`"),
    DialectDifference("computation in a block of your own", "`hybrid_forward(F, x, weight)`", "`forward(x)`"),
    DialectDifference("where an array is", "`ctx=`, `as_in_context`", "also `device=`, `to_device`"),
    DialectDifference(
        "`attach_grad()` of a computed array", "cuts it off from what it was computed from", "keeps it connected"
    ),
    DialectDifference("metrics", "`mx.metric`", "`mx.gluon.metric`"),
    DialectDifference(
        "keys in a file of `save_parameters`",
        "`0.weight`; in an LSTM `_unfused.0.i2h_weight`",
        "`0.weight`; in an LSTM `rnn_param`",
    ),
    DialectDifference("format of that file", "MXNet's list of arrays", "npz in NumPy mode"),
    DialectDifference("`transforms.Cast()(x)`", "an array", "a tuple of arrays"),
    DialectDifference(
        "`transforms.RandomFlipLeftRight()`",
        "half of the images",
        "69 %: 0.5 is compared with a normally distributed number",
    ),
    DialectDifference("`split_data` outside NumPy mode", "views of the rows", "copies"),
)
