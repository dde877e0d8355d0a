"""`lw.diff` of PRNG keys: the same integers are another key for another implementation."""

from pathlib import Path

import jax
import jax.numpy as jnp

import leafwise as lw

_BITS = jnp.arange(4, dtype=jnp.uint32)


def _model(impl: str) -> dict[str, jax.Array]:
    return {"key": jax.random.wrap_key_data(_BITS, impl=impl), "w": jnp.ones(2)}


def test_keys_of_two_implementations_differ(tmp_path: Path) -> None:
    lw.save(_model("rbg"), tmp_path / "keys.safetensors")
    for source in (_model("rbg"), tmp_path / "keys.safetensors"):
        difference = lw.diff(source, _model("unsafe_rbg"))
        assert difference["key"].kinds == ("changed",)
        assert "a key of rbg, in b of unsafe_rbg" in difference["key"].notes[0]
        assert [change.path for change in difference if change.kind != "same"] == ["key"]


def test_the_same_implementation_and_bare_integers_are_the_same() -> None:
    assert lw.diff(_model("rbg"), _model("rbg"))["key"].kinds == ("same",)
    assert lw.diff(_model("rbg"), {"key": _BITS, "w": jnp.ones(2)})["key"].kinds == ("same",)
