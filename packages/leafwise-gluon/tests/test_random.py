"""Random numbers are those of MXNet, for the same seed. `random_facts.py` describes how they were recorded."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from random_facts import fact, golden_file

from leafwise_gluon import MXNetError, autograd, dialect, np, npx
from leafwise_gluon import random as mx_random
from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.arrays.twister import Twister
from leafwise_gluon.nd import random as nd_random
from leafwise_gluon.nd import random_operators

MODULES: dict[str, Any] = {"np": np, "npx": npx, "nd": SimpleNamespace(random=nd_random), "random": mx_random}
GOLDEN = {version: json.loads(golden_file(version).read_text("utf-8")) for version in (1, 2)}
CASES = [(version, expression) for version, facts in GOLDEN.items() for expression in facts]


@pytest.fixture(autouse=True)
def dialect_and_seed_of_the_start() -> Iterator[None]:
    yield
    dialect.use_version(2)
    mx_random.seed(0)


@pytest.mark.parametrize(("version", "expression"), CASES)
def test_samples_are_those_of_mxnet(version: Any, expression: str) -> None:
    dialect.use_version(version)
    known, drawn = GOLDEN[version][expression], fact(expression, MODULES)
    assert (drawn["shape"], drawn["dtype"]) == (known["shape"], known["dtype"])
    numpy.testing.assert_allclose(drawn["values"], known["values"], rtol=2e-5, atol=1e-6)
    assert drawn["after"] == known["after"], "the generators are elsewhere in their streams"


def test_a_number_next_to_one_is_rounded_down() -> None:
    twister = Twister(0)
    twister.skip(len(twister.peek(1)))
    assert Twister(0).uniform(100_000).max() < 1


def test_float64_takes_two_integers() -> None:
    one, two = Twister(3), Twister(3)
    one.uniform(5, numpy.float64)
    two.take(10)
    assert one.take(3).tolist() == two.take(3).tolist()


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 129, 65_535, 70_001])
def test_spread_samples_have_every_size(count: int) -> None:
    assert nd_random.normal(shape=(count,)).shape == (count,)
    assert nd_random.uniform(shape=(count,)).shape == (count,)


def test_seeds_of_one_device_restart_the_stream_elsewhere() -> None:
    mx_random.seed(7, ctx="cpu")
    assert np.random.uniform().item() == pytest.approx(0.07630829, abs=1e-7)
    mx_random.seed(7)
    assert np.random.uniform().item() == pytest.approx(0.42855945, abs=1e-7)


def test_every_seed_function_is_the_same() -> None:
    drawn = []
    for seed in (mx_random.seed, np.random.seed, npx.random.seed):
        seed(11)
        drawn.append((np.random.normal().item(), nd_random.normal().asnumpy().item()))
    assert drawn[0] == drawn[1] == drawn[2]


@pytest.mark.parametrize("seed", ["7", 1.5, None])
def test_seeds_are_integers(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed_state must be int"):
        mx_random.seed(seed)


def test_dropout_masks() -> None:
    mx_random.seed(7)
    mask = STREAM.dropout_mask((300,), 0.3)
    assert (mask[:8] != 0).tolist() == [True, False, False, False, False, True, True, True]
    numpy.testing.assert_allclose(sorted(set(mask.tolist())), [0, 1 / 0.7], rtol=1e-6)
    assert STREAM.dropout_mask((4, 1), 0.5, numpy.float16, shared=True).dtype == numpy.float16
    assert numpy.isnan(STREAM.dropout_mask((10,), 1.0)).all()


def test_normal_numbers_have_gradients_by_their_parameters() -> None:
    loc, scale = np.array([1.0, 2.0]), np.array([0.5, 1.0])
    loc.attach_grad()
    scale.attach_grad()
    with autograd.record():
        drawn = np.random.normal(loc, scale)
    drawn.backward()
    assert loc.grad.tolist() == [1, 1]
    numpy.testing.assert_allclose(scale.grad.asnumpy(), ((drawn - loc) / scale).asnumpy(), rtol=1e-5)


def test_gamma_has_no_gradients() -> None:
    shape = np.array([1.0])
    shape.attach_grad()
    with autograd.record(), pytest.raises(MXNetError, match=r"gradients through np\.random\.gamma"):
        np.random.gamma(shape)


def test_samples_are_written_to_out() -> None:
    out = np.zeros((3,))
    assert np.random.uniform(1, 2, size=(3,), out=out) is out
    assert (out.asnumpy() >= 1).all()


def test_shuffling_keeps_every_row() -> None:
    x = np.arange(3000).reshape(1000, 3)
    np.random.shuffle(x)
    assert sorted(x.tolist()) == np.arange(3000).reshape(1000, 3).tolist()
    assert x.tolist() != np.arange(3000).reshape(1000, 3).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: np.random.normal(0, -1), "scale < 0"),
        (lambda: np.random.gamma(-1.0), "expect shape > 0"),
        (lambda: np.random.exponential(-1.0), "expect scale >= 0"),
        (lambda: np.random.choice(3, size=4, replace=False), "larger sample than population"),
        (lambda: np.random.multinomial(3, [0.9, 0.9]), "sum"),
        (lambda: np.random.randint(3, 3), "low"),
        (lambda: nd_random.uniform(shape=3, dtype="int32"), "int32"),
        (lambda: nd_random.multinomial(1), "nd.random.multinomial"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(MXNetError, match=message):
        call()


def test_operators_of_nd_are_the_functions_of_nd_random() -> None:
    mx_random.seed(1)
    expected = nd_random.exponential(0.25, shape=3).asnumpy()
    mx_random.seed(1)
    assert random_operators.random_exponential(lam=4, shape=3).asnumpy().tolist() == expected.tolist()
    assert nd_random.uniform(shape=2).shape == random_operators.uniform(0, 1, (2,)).shape
