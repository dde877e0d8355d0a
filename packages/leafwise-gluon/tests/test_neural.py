"""The neural operations and the layers compute what MXNet computes: results, dtypes, gradients, texts and errors."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import neural_facts
import numpy
import pytest

from leafwise_gluon import autograd, dialect, modes, nd, nn, np, npx

GOLDEN = {
    version: json.loads((neural_facts.HERE / f"neural.golden{version}.json").read_text(encoding="utf-8"))
    for version in (1, 2)
}
CASES = [(version, case) for version in (1, 2) for case in GOLDEN[version] if case != "MXNet"]


def _front_end() -> Any:
    """What neural_facts needs of the module mxnet."""
    util = SimpleNamespace(is_np_array=modes.is_np_array)
    return SimpleNamespace(nd=nd, np=np, npx=npx, autograd=autograd, gluon=SimpleNamespace(nn=nn), util=util)


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    dialect.use_version(2)
    modes.back_to_the_dialect()


def _close(actual: Any, expected: Any) -> None:
    assert actual[:2] == expected[:2]
    numpy.testing.assert_allclose(actual[2], expected[2], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("version", "case"), CASES, ids=[f"{version} {case}" for version, case in CASES])
def test_it_computes_what_mxnet_computes(version: Any, case: str, restored: None) -> None:
    kind, text = case.split(": ", 1)
    dialect.use_version(version)
    if kind == "npx":
        npx.set_np()
    expected = GOLDEN[version][case]
    actual = neural_facts.Measure(_front_end(), kind).of(text)
    if isinstance(expected, str) or isinstance(actual, str):
        assert actual == expected
        return
    assert actual.keys() == expected.keys()
    for key, facts in expected.items():
        if key in ("repr", "parameters"):
            assert actual[key] == facts
        else:
            assert len(actual[key]) == len(facts)
            for one, other in zip(actual[key], facts, strict=True):
                _close(one, other)
