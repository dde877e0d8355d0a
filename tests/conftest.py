"""What must be in the environment before the first test is imported; the commands that tests run inherit it."""

import os
from importlib import metadata
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from tests import messages
from tests.messages import MessagePage

# A busy machine is slow, which is not a failure. The same examples in every run, so that a change is judged by what it
# changes; LEAFWISE_RANDOM=1 looks for new ones, as `make fuzz` does.
settings.register_profile(
    "leafwise",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("LEAFWISE_RANDOM"),
)
settings.load_profile("leafwise")

_page = MessagePage()

# Where there is no GPU, Triton's kernels are run by its interpreter, which it must know before it is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Commands write UTF-8 whatever the locale, as the tests that read them expect; a test of another encoding sets it.
os.environ["PYTHONIOENCODING"] = "utf-8"


@pytest.fixture(scope="session")
def triton_runs() -> None:
    """For tests that run Triton's kernels: older releases of its interpreter do not work with newer ones of NumPy."""
    import numpy as np
    import triton
    from tests.kernels import gpu

    try:
        gpu.measure([np.ones(3, np.float32)])
    except triton.runtime.errors.InterpreterError as error:
        if "only 0-dimensional arrays can be converted" not in str(error):
            raise
        pytest.skip(f"the interpreter of Triton {triton.__version__} does not work with NumPy {np.__version__}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the page of messages, and fails the run if one of them is not in plain English."""
    if not _page.messages:
        return
    messages.PAGE.parent.mkdir(exist_ok=True)
    messages.PAGE.write_text(_page.text(), "utf-8")
    if wrong := _page.wrong():
        print("\n\nmessages that CONTRIBUTING.md rules out:", *wrong, sep="\n  ")
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_configure() -> None:
    """`make test` installs what constraints.txt pins: there, a library that is missing is an error, not a skip."""
    messages.collect(_page)
    if os.environ.get("LEAFWISE_PINNED"):
        lines = (Path(__file__).parent.parent / "constraints.txt").read_text("utf-8").splitlines()
        names = [line.partition("==")[0] for line in lines if "==" in line]
        missing = [name for name in names if not [*metadata.distributions(name=name)]]
        if missing:
            raise pytest.UsageError(f"not installed, so that their tests would be skipped: {', '.join(missing)}")
