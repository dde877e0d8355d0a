"""Random samples as expressions, and what is kept of each result: shape, dtype, and some elements.

Run as a script with an interpreter that has MXNet 1.9.1 or 2.0.0b1 (see record_golden.py), it writes the golden file of
that version beside it.
"""

import json
from pathlib import Path
from typing import Any

import numpy

_KEPT = 24

NP_SAMPLES = """
np.random.uniform()
np.random.uniform(size=3)
np.random.uniform(-2, 3, size=(40, 50))
np.random.uniform(0.1, 0.7, size=11, dtype="float64")
np.random.uniform(np.array([1.0, 2.0]), 4.0)
np.random.uniform(np.array([1.0, 2.0]), np.array([2.0, 4.0]), size=(3, 2))
np.random.normal()
np.random.normal(size=1)
np.random.normal(size=(1001,))
np.random.normal(3, 0.5, size=(20, 31))
np.random.normal(size=11, dtype="float64")
np.random.normal(size=11, dtype="float16")
np.random.normal(np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 2.0]))
np.random.normal(np.array([1.0, 2.0], dtype="float64"), 2.0)
np.random.lognormal(1.0, 0.5, size=50)
np.random.rand(3)
np.random.randn(3, 2)
np.random.randint(0, 1000, size=(200,))
np.random.randint(5, size=(3,))
np.random.randint(-5, 5, size=(3,), dtype="int32")
np.random.randint(7)
np.random.exponential(2.0, size=50)
np.random.exponential(np.array([1.0, 2.0]))
np.random.rayleigh(2.0, size=50)
np.random.weibull(2.0, size=50)
np.random.pareto(2.0, size=50)
np.random.power(2.0, size=50)
np.random.gumbel(1.0, 2.0, size=50)
np.random.logistic(1.0, 2.0, size=50)
np.random.gamma(2.0, 3.0, size=200)
np.random.gamma(0.5, 3.0, size=200)
np.random.gamma(np.array([1.0, 2.0, 3.0]), 3.0)
np.random.gamma(2.0, 3.0, size=50, dtype="float64")
np.random.beta(2.0, 3.0, size=50)
np.random.chisquare(3.0, size=50)
np.random.choice(10, size=(50,))
np.random.choice(10)
np.random.choice(20, size=5, replace=False)
np.random.choice(20, size=15, replace=False)
np.random.choice(np.array([5.0, 6.0, 7.0]), size=(4,))
np.random.multinomial(20, [0.2, 0.3, 0.5], size=4)
np.random.multinomial(20, np.array([0.25, 0.25, 0.5]), size=(2, 2))
np.random.multinomial(20, [0.2, 0.3, 0.5])
npx.random.bernoulli(prob=0.3, size=50)
npx.random.bernoulli(logit=np.array([0.3, -1.0, 2.0]))
npx.random.bernoulli(prob=np.array([0.3, 0.5]), size=(3, 2))
npx.random.uniform_n(np.array([1.0, 2.0, 3.0]), 4.0, batch_shape=(2,))
npx.random.normal_n(np.array([1.0, 2.0, 3.0]), 2.0, batch_shape=(2,))
in_place(np.random.shuffle, np.arange(11))
in_place(np.random.shuffle, np.arange(5000))
in_place(np.random.shuffle, np.arange(22).reshape(11, 2))
"""

ONLY_V1_NP_SAMPLES = """
np.random.choice(3, size=50, p=np.array([0.2, 0.5, 0.3]))
np.random.choice(6, size=4, p=np.array([0.2, 0.3, 0.1, 0.1, 0.2, 0.1]), replace=False)
"""

ONLY_V2_NP_SAMPLES = """
np.random.laplace(1.0, 2.0, size=50)
np.random.f(3.0, 4.0, size=50)
"""

ND_SAMPLES = """
nd.random.uniform()
nd.random.uniform(shape=64)
nd.random.uniform(shape=(65,))
nd.random.uniform(-2, 3, shape=(300, 400))
nd.random.uniform(shape=103, dtype="float64")
nd.random.uniform(shape=103, dtype="float16")
nd.random.uniform(nd.random.uniform(shape=3), nd.random.uniform(1, 2, shape=3), shape=40)
nd.random.normal(shape=3)
nd.random.normal(1, 2, shape=(300, 400))
nd.random.normal(shape=103, dtype="float64")
nd.random.normal(nd.random.uniform(shape=(3, 1)), nd.random.uniform(shape=(3, 1)))
nd.random.randn(2, 3)
nd.random.randint(0, 1000, shape=200)
nd.random.randint(0, 1000, shape=200, dtype="int64")
nd.random.exponential(2.0, shape=103)
nd.random.poisson(3.0, shape=103)
nd.random.poisson(20.0, shape=103)
nd.random.gamma(3.0, 2.0, shape=103)
nd.random.gamma(0.4, 2.0, shape=103)
nd.random.gamma(2.4, 2.0, shape=103, dtype="float64")
nd.random.negative_binomial(3, 0.4, shape=103)
nd.random.generalized_negative_binomial(2.0, 0.3, shape=103)
nd.random.generalized_negative_binomial(2.0, 0.0, shape=103)
nd.random.uniform_like(nd.random.uniform(shape=(2, 3)), 1, 2)
nd.random.normal_like(nd.random.uniform(shape=(2, 3)), 1, 2)
nd.random.shuffle(nd.random.uniform(shape=20))
nd.random.shuffle(nd.random.uniform(shape=(20, 2)))
"""


def samples(version: int) -> list[str]:
    own = ONLY_V1_NP_SAMPLES if version == 1 else ONLY_V2_NP_SAMPLES
    return (NP_SAMPLES + own + ND_SAMPLES).strip().replace("\n\n", "\n").split("\n")


def fact(expression: str, modules: dict[str, Any]) -> dict[str, Any]:
    """What an expression gives after a seed, and the first number that its generators give after it."""
    modules["random"].seed(7)
    values = eval(expression, {**modules, "in_place": in_place}).asnumpy()
    flat = values.reshape(-1)
    kept = flat[numpy.linspace(0, flat.size - 1, min(flat.size, _KEPT)).astype(int)]
    after = [modules["np"].random.uniform().item(), modules["nd"].random.uniform().asnumpy()[0].item()]
    return {"shape": list(values.shape), "dtype": str(values.dtype), "values": kept.tolist(), "after": after}


def in_place(function: Any, array: Any) -> Any:
    function(array)
    return array


def golden_file(version: int) -> Path:
    return Path(__file__).with_name(f"random_facts.{version}.golden.json")


def main() -> None:
    import mxnet

    version = int(mxnet.__version__[0])
    mxnet.npx.set_np()
    modules = {"np": mxnet.np, "npx": mxnet.npx, "nd": mxnet.nd, "random": mxnet.random}
    facts = {expression: fact(expression, modules) for expression in samples(version)}
    lines = (f"{json.dumps(expression)}: {json.dumps(known)}" for expression, known in facts.items())
    golden_file(version).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
