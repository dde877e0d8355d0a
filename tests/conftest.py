"""Sets up the environment before the first test is imported; the commands that tests run inherit it."""

import gc
import os
import signal
from collections import Counter
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests import message_page
from tests.message_page import MessagePage

# A slow, busy machine must not make tests fail. The examples are the same in every run, so that a change is judged by
# its own effect; with LEAFWISE_RANDOM=1, as in `make fuzz`, each run tries new ones.
settings.register_profile(
    "leafwise",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("LEAFWISE_RANDOM"),
)
settings.load_profile("leafwise")

_page = MessagePage()
RANKS = "tests/distributed/"

# A shell starts jobs in the background with interrupts ignored, and some tests interrupt themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Triton's interpreter computes with NumPy and cannot read the memory of a device, so there it must not find one.
if os.environ.get("TRITON_INTERPRET") == "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Tests run in more processes than there are cores. If PyTorch then computes with several threads, these spend most of
# their time waiting for each other: some tests would take twenty times as long. Kernels of leafwise still use them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for the commands that tests run
# Without a GPU, the interpreter runs the kernels, which must be set before Triton is first imported.
if find_spec("torch"):  # there are tests of JAX without PyTorch
    import torch

    if "OMP_NUM_THREADS" not in os.environ:  # tools/matrix.py sets it, to test with one, two and more threads
        torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
# Commands write UTF-8 whatever the locale, as the tests expect; a test of another encoding sets that itself.
os.environ["PYTHONIOENCODING"] = "utf-8"
# Output is as wide and as colored as the tests expect, whatever is set for other commands.
for _name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(_name, None)


@pytest.fixture(scope="session")
def triton_runs() -> None:
    """For tests that run Triton's kernels: older releases of its interpreter do not work with newer NumPy releases."""
    import numpy as np
    import triton
    from tests.kernels import gpu

    try:
        gpu.measure([np.ones(3, np.float32)])
    except triton.runtime.errors.InterpreterError as error:
        if "only 0-dimensional arrays can be converted" not in str(error):
            raise
        pytest.skip(f"the interpreter of Triton {triton.__version__} does not work with NumPy {np.__version__}")


def scope_of(nodeid: str) -> str:
    """Tests that run in one process, if there are several (pytest-xdist): a file, whose tests share fixtures; and all
    tests with ranks, which share a server that takes many seconds to start."""
    file = nodeid.partition("::")[0]
    return RANKS if file.startswith(RANKS) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The scopes with the most slow tests come first: if the last ones are short, all processes end together."""
    if hasattr(config, "workerinput"):
        slow = Counter(scope_of(item.nodeid) for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[scope_of(item.nodeid)])


def pytest_collection_finish() -> None:
    """Leaves what was imported and collected out of all later garbage collections: a million objects that stay. Each
    collection would otherwise take half a second, and there are thousands."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the messages of a process that has ended, if tests run in several (pytest-xdist)."""
    for kind, form, message in getattr(node, "workeroutput", {}).get("messages", ()):
        _page.messages.setdefault((kind, form), message)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the page of messages, and fails the run if one of them is not in plain English."""
    if hasattr(session.config, "workeroutput"):  # the process that started this one does it
        session.config.workeroutput["messages"] = [(*key, message) for key, message in _page.messages.items()]
        return
    if not _page.messages:
        return
    message_page.PAGE.parent.mkdir(exist_ok=True)
    message_page.PAGE.write_text(_page.text(), "utf-8")
    if wrong := _page.wrong():
        print("\n\nmessages that CONTRIBUTING.md rules out:", *wrong, sep="\n  ")
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    gc.unfreeze()  # otherwise libraries report what is not freed at the end


def pytest_configure() -> None:
    """`make test` installs what constraints.txt pins, so a missing library is an error there, not a skip."""
    message_page.collect(_page)
    if os.environ.get("LEAFWISE_PINNED"):
        lines = (Path(__file__).parent.parent / "constraints.txt").read_text("utf-8").splitlines()
        names = [line.partition("==")[0] for line in lines if "==" in line]
        missing = [name for name in names if not [*metadata.distributions(name=name)]]
        if missing:
            raise pytest.UsageError(f"not installed, so their tests would be skipped: {', '.join(missing)}")
