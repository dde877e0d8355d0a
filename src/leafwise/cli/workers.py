"""The option `--dask`, and who reads the files of a verb: this process, its threads, or the workers of a cluster."""

import argparse
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from leafwise.cli.output import caution
from leafwise.core.work.threads import CORES
from leafwise.errors import Error

PATTERN = "; or a pattern in quotes, such as 'runs/**', for every checkpoint that matches"
_PATIENCE = 20  # seconds that a cluster may take to answer


def add_dask(parser: Any) -> None:
    """Adds `--dask`."""
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="let the workers of a Dask cluster read the files, such as tcp://host:8786; they need the same version of "
        "leafwise, and must reach the files under the same names",
    )


@contextmanager
def executor_of(options: argparse.Namespace, is_fleet: bool) -> Iterator[Any]:
    """The executor for a verb: that of `--dask`; threads of this process for many checkpoints; otherwise None."""
    if is_fleet:
        gc.enable()  # of many checkpoints, much is not needed for long
    if options.dask is None:
        if not is_fleet:
            yield None
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(CORES) as threads:
            yield threads
        return
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise Error("--dask needs distributed: pip install 'leafwise[dask]'") from error
    try:
        _call(options.dask)
        client = distributed.Client(options.dask, timeout=f"{_PATIENCE}s", set_as_default=False)
    except TimeoutError as error:
        raise Error(
            f"cannot reach a Dask cluster at {options.dask!r}: something else answers there, or nothing; give the port "
            "of the scheduler, which is often 8786, not that of the dashboard, which is often 8787"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Error(f"cannot reach a Dask cluster at {options.dask!r}: {reason}") from error
    with client:
        if not client.scheduler_info()["workers"]:
            caution(f"the Dask cluster at {options.dask!r} has no workers; waiting for one")
        yield client.get_executor()


def for_each(options: argparse.Namespace, target: str, verb: str, work: Callable[..., Any]) -> Any:
    """The result of `work` for one checkpoint, or a `Fleet` of those for every checkpoint that matches a pattern."""
    from leafwise.core.work.executor_tasks import Workers
    from leafwise.core.work.fleet import each_checkpoint, is_pattern

    with executor_of(options, is_pattern(target)) as executor:
        if is_pattern(target):
            return each_checkpoint(target, verb, executor, work, progress=True)
        return work(target, None if executor is None else Workers(executor), progress=True)


def _call(address: str) -> None:
    """Raises unless a Dask scheduler answers. A client would wait without end for another kind of server, and it takes
    long to close after an error. The call has a thread of its own, because this one may run an event loop already, as
    in a notebook."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    comm, security = import_module("distributed.comm"), import_module("distributed").Security()

    async def call() -> None:
        options = security.get_connection_args("client")
        (await asyncio.wait_for(comm.connect(address, timeout=_PATIENCE, **options), _PATIENCE + 5)).abort()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(call())).result()
