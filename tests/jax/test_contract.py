"""The contract of homes over JAX."""

import pytest
from tests.jax.cases import CASES

from leafwise.testing import Case
from leafwise.testing.home_contract import *  # noqa: F403


@pytest.fixture(params=CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def case(request: pytest.FixtureRequest) -> Case:
    one: Case = request.param
    return one
