"""`mxnet.np`: array functions like NumPy's, with float32 as the default dtype, and with gradients."""

# ruff: noqa: F401 - this file collects the names

from typing import Any

from leafwise_gluon import dialect
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.np import by_numpy, elementwise, linalg, random
from leafwise_gluon.np.creation import (
    arange,
    array,
    asarray,
    blackman,
    copy,
    diag_indices_from,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    hamming,
    hanning,
    identity,
    indices,
    linspace,
    logspace,
    meshgrid,
    ones,
    ones_like,
    tri,
    tril_indices,
    triu_indices,
    triu_indices_from,
    zeros,
    zeros_like,
)
from leafwise_gluon.np.dtypes import (
    BY_VERSION,
    NAN,
    NINF,
    NZERO,
    PINF,
    PZERO,
    NaN,
    can_cast,
    dtype,
    e,
    finfo,
    iinfo,
    inf,
    nan,
    newaxis,
    pi,
    result_type,
)
from leafwise_gluon.np.elementwise import (
    around,
    bitwise_invert,
    bitwise_not,
    clip,
    invert,
    nan_to_num,
    positive,
    round,
    round_,
)
from leafwise_gluon.np.files import from_dlpack, genfromtxt, set_printoptions
from leafwise_gluon.np.joining import (
    append,
    array_split,
    column_stack,
    concat,
    concatenate,
    delete,
    dsplit,
    dstack,
    hsplit,
    hstack,
    insert,
    row_stack,
    split,
    stack,
    vsplit,
    vstack,
)
from leafwise_gluon.np.products import cross, dot, einsum, inner, kron, matmul, outer, tensordot, vdot
from leafwise_gluon.np.reducing import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    average,
    bincount,
    cumsum,
    diff,
    ediff1d,
    histogram,
    max,
    mean,
    median,
    min,
    percentile,
    polyval,
    prod,
    product,
    quantile,
    sometrue,
    std,
    sum,
    trace,
    var,
)
from leafwise_gluon.np.searching import (
    argsort,
    flatnonzero,
    interp,
    may_share_memory,
    nonzero,
    resize,
    shares_memory,
    sort,
    take,
    unique,
    unique_all,
    unique_inverse,
    unique_values,
    unravel_index,
    where,
)
from leafwise_gluon.np.shapes import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    broadcast_arrays,
    broadcast_to,
    diag,
    diagflat,
    diagonal,
    expand_dims,
    fill_diagonal,
    flip,
    fliplr,
    flipud,
    moveaxis,
    pad,
    permute_dims,
    ravel,
    repeat,
    reshape,
    roll,
    rollaxis,
    rot90,
    shape,
    squeeze,
    swapaxes,
    tile,
    transpose,
    tril,
    triu,
)

globals().update(elementwise.FUNCTIONS)
globals().update(by_numpy.FUNCTIONS)

_other_names = names_of("mxnet.numpy")


def __getattr__(name: str) -> Any:
    of_version = BY_VERSION[dialect.version()]
    return of_version[name] if name in of_version else _other_names(name)


__all__ = [name for name in globals() if not name.startswith("_") and name not in ("Any", "dialect", "names_of")]
