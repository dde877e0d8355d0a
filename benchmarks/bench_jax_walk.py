"""The walk of a pytree of JAX with 47,000 leaves, with the path, shape and dtype of each, compared with JAX's own."""

import sys
from importlib.util import find_spec
from typing import Any

from figures import exit_status, not_run, report

if find_spec("jax") is None:
    sys.exit(not_run("JAX is not installed"))

import jax
import jax.numpy as jnp
from common import interleaved, machine

import leafwise as lw

LAYERS = 9_400  # of five leaves


def pytree() -> dict[str, Any]:
    def dense() -> dict[str, Any]:
        return {"bias": jnp.zeros(4), "kernel": jnp.ones((4, 4))}

    layers = {
        f"layer_{n:04}": {"attention": {"key": dense(), "query": dense()}, "scale": jnp.ones(4)} for n in range(LAYERS)
    }
    return {"params": layers}


def by_jax(params: Any) -> list[tuple[str, Any, str]]:
    flat = jax.tree_util.tree_flatten_with_path(params)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), x.shape, x.dtype.name) for path, x in flat]


def by_leafwise(params: Any) -> list[tuple[str, Any, str]]:
    columns = lw.tree(params).columns
    rows = range(len(columns.row_names))
    facts = columns.facts(rows)
    return [(path, at.spec.shape, at.spec.dtype) for path, at in zip(columns.row_texts(rows), facts, strict=True)]


def main() -> int:
    machine()
    params = pytree()
    assert by_leafwise(params) == by_jax(params)
    assert len(lw.tree(params)) == 5 * LAYERS
    times = interleaved(
        9, jax=lambda: by_jax(params), leafwise=lambda: by_leafwise(params), tree=lambda: lw.tree(params)
    )
    print(f"# {5 * LAYERS:,} leaves; tree_flatten_with_path with keystr takes {times['jax'] * 1000:.0f} ms")
    met = [
        report("paths, shapes and dtypes / tree_flatten_with_path with keystr", times["leafwise"] / times["jax"], 1.0),
        report("lw.tree / tree_flatten_with_path with keystr", times["tree"] / times["jax"], 1.0),
    ]
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
