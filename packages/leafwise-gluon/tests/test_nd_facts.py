"""nd arrays behave like those of both versions of MXNet, or raise an error that names the operation: values, dtypes,
shapes, types, copies and gradients of many expressions.

`record_nd_golden.py` describes how the facts were recorded.
"""

import json
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nd_facts
import pytest
from test_array_facts import recorded_outcome, same

from leafwise_gluon import autograd, context, dialect, modes, nd, np

HERE = Path(__file__).parent
VERSIONS: tuple[dialect.Version, ...] = (1, 2)
GOLDEN: dict[int, dict[str, Any]] = {
    version: json.loads((HERE / f"nd_facts.{version}.golden.json").read_text("utf-8")) for version in VERSIONS
}
GROUPS = [name for name in GOLDEN[1] if name != "MXNet"]
# The error of a refused operation names it.
NAMED = re.compile(r"the Gluon front end|\bnd\.|\bnd\[|NDArray|ndarray|Cannot differentiate")
FINE = {"equal", "both raise", "refused", "gradient refused"}
# MXNet cannot differentiate these, because its backward operation fails on the default of `axis`, or on an empty slice.
DIFFERENTIABLE_HERE = {
    "nd.sort(x)",
    "nd.sort(x, is_ascend=False)",
    "nd.sort(x, is_ascend=0)",
    "nd.sort(v)",
    "x.sort()",
    "x.sort(is_ascend=False)",
    "x[1:1]",
    "x[5:]",
}


@pytest.fixture(autouse=True)
def _dialect_of_the_other_tests() -> Iterator[None]:
    before = dialect.version()
    yield
    dialect.use_version(before)
    modes.back_to_the_dialect()


@cache
def outcomes(version: dialect.Version, group: str) -> dict[str, str]:
    """The outcome of every case of a group: "equal", "both raise", "refused", or how it differs."""
    dialect.use_version(version)
    modes.back_to_the_dialect()
    facts = nd_facts.LegacyFacts(SimpleNamespace(nd=nd, np=np, autograd=autograd, cpu=context.cpu))
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text, golden in GOLDEN[version][group].items():
            found[text] = outcome(text, golden, facts.of(group, text), facts.errors)
    return found


def outcome(text: str, golden: dict[str, Any], ours: dict[str, Any], errors: dict[str, Exception]) -> str:
    if "raises" in golden:
        return "both raise" if "raises" in ours else f"MXNet raises {golden['raises']}, ours gives {ours}"
    unnamed = [error for error in errors.values() if not NAMED.search(str(error))]
    if "raises" in ours:
        return "refused" if not unnamed else f"refused without a name: {unnamed[0]!r}"
    if not same(golden, ours):
        return f"MXNet gives {golden}, ours {ours}"
    if text in DIFFERENTIABLE_HERE and "raises" in golden["recorded"]:
        return "equal"
    return recorded_outcome(golden.get("recorded", {}), ours.get("recorded", {}), unnamed)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_nd_case_in_the_table_was_recorded(version: dialect.Version) -> None:
    recorded = [(group, text) for group in GROUPS for text in GOLDEN[version][group]]
    assert nd_facts.cases() == recorded


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("group", GROUPS)
def test_no_nd_expression_silently_differs_from_mxnet(version: dialect.Version, group: str) -> None:
    wrong = {text: found for text, found in outcomes(version, group).items() if found not in FINE}
    assert not wrong, "\n".join(f"{text}: {found}" for text, found in wrong.items())


@pytest.mark.parametrize("version", VERSIONS)
def test_few_nd_expressions_are_refused(version: dialect.Version) -> None:
    found = [result for group in GROUPS for result in outcomes(version, group).values()]
    assert found.count("equal") >= 1500
    assert found.count("refused") + found.count("gradient refused") <= 20


@pytest.mark.parametrize("name", ["exponential", "negative_binomial", "poisson"])
def test_samplers_that_only_nd_random_has_are_not_in_nd(name: str) -> None:
    assert not hasattr(nd, name)
    assert hasattr(nd.random, name)


def test_gamma_is_the_function_and_not_the_distribution() -> None:
    assert nd.gamma(nd.array([1, 3, 5])).asnumpy().tolist() == pytest.approx([1, 2, 24], rel=1e-5)
