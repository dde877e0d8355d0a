"""Only files called test_*.py are tests; the others are scripts."""

from collections.abc import Iterator

import pytest
from tests.forked import Commands

collect_ignore_glob = ["chapters/*", "[!t]*.py", "t[!e]*.py"]


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Runs scripts as `python -m leafwise_gluon` does."""
    # PyTorch imports sympy when it first trains.
    imports, folder = ["leafwise_gluon", "sympy"], tmp_path_factory.mktemp("scripts")
    commands = Commands("leafwise_gluon", imports, folder, PYTHONWARNINGS="ignore")
    yield commands
    commands.close()
