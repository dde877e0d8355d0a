"""The device, the environment variables and the dtype of tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from leafwise_gluon.context import Context, current_context
from leafwise_gluon.environment import get_gpu_count, getenv, setenv


def default_context() -> Context:
    return current_context()


def default_dtype() -> Any:
    return numpy.float32


def list_gpus() -> range:
    return range(get_gpu_count())


def is_cd_run() -> bool:
    return getenv("CD_JOB") == "1"


def is_op_runnable() -> bool:
    """Whether the device can run operators that need a recent GPU: always, here."""
    return True


@contextmanager
def environment(*args: Any) -> Iterator[None]:
    """A scope with other environment variables: `environment(name, value)` or `environment({name: value, …})`. The
    value None removes a variable."""
    assert len(args) in (1, 2), "Expecting one dict arg or two args: env var name and value"
    wanted = args[0] if len(args) == 1 else {args[0]: args[1]}
    before = {name: getenv(name) for name in wanted}
    for name, value in wanted.items():
        setenv(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setenv(name, value)
