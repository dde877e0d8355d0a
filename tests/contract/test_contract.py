"""The contract of homes over PyTorch models, wrappers, state dicts, an immutable toy, and files."""

from collections.abc import Iterator

import pytest
from tests.contract import toy
from tests.contract.cases import ALL

from leafwise.testing import Case
from leafwise.testing.home_contract import *  # noqa: F403


@pytest.fixture(autouse=True)
def _toy_home() -> Iterator[None]:
    with toy.registered():
        yield


@pytest.fixture(params=ALL.values(), ids=[name.replace(" ", "-") for name in ALL])
def case(request: pytest.FixtureRequest) -> Case:
    one: Case = request.param
    return one
