"""The contract of homes over JAX."""

import pytest
from tests.contract.case import Case
from tests.contract.contract import *  # noqa: F403
from tests.jax.cases import CASES


@pytest.fixture(params=CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def case(request: pytest.FixtureRequest) -> Case:
    one: Case = request.param
    return one
