"""Only files called test_*.py are tests; the others are scripts."""

from collections.abc import Iterator

import pytest
from tests.gluon.scripts import Scripts

collect_ignore_glob = ["chapters/*", "[!t]*.py", "t[!e]*.py"]


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    running = Scripts(tmp_path_factory.mktemp("scripts"))
    yield running
    running.close()
