"""`mxnet.random`: the seed of all random numbers, and the functions of `nd.random`."""

import numbers
from typing import Any

from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.context import as_context
from leafwise_gluon.names.lookup import names_of

_OF_ND = (
    "exponential",
    "gamma",
    "generalized_negative_binomial",
    "multinomial",
    "negative_binomial",
    "normal",
    "poisson",
    "randint",
    "randn",
    "shuffle",
    "uniform",
)
__all__ = [*_OF_ND, "seed"]


def seed(seed_state: Any = 0, ctx: Any = "all", device: Any = "all") -> None:
    """Restarts all random numbers from a seed. The seed is 0 until the first call.

    >>> from leafwise_gluon import np, random
    >>> random.seed(1)
    >>> first = np.random.uniform()
    >>> random.seed(1)
    >>> first == np.random.uniform()
    array(True)
    """
    if not isinstance(seed_state, numbers.Integral):
        raise ValueError("seed_state must be int")
    one_device = [as_context(where) for where in (ctx, device) if not (isinstance(where, str) and where == "all")]
    STREAM.seed(int(seed_state), one_device=bool(one_device))


__getattr__ = names_of("mxnet.random")  # the functions of nd.random, which needs the seed
