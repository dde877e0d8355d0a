"""Saves and loads the states of everything in optax, between leafwise and Orbax in both directions.

Each optimizer, transformation and wrapper of optax that works with simple arguments takes a few steps. Its state,
parameters and step are saved, and loaded into a new state in which every value differs. The result must have the same
types and the same bits. Typed random keys must come back as keys of their implementation, and must not be loaded as
keys of another one. Run it where JAX, optax and Orbax are installed:

    build/jax_alone/bin/python -m tools.optax_orbax               everything, and records the table (a minute or two)
    build/jax_alone/bin/python -m tools.optax_orbax adam masked   some of it
"""

import inspect
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from tests.jax.orbax_folders import WRITERS, same, standard
from tools import sweeps

import leafwise as lw

STEPS = 3
IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")  # of typed random keys


class Run(NamedTuple):
    """What is saved, and a function that makes what it is loaded into. `as_tree` makes the pytree of both that Orbax
    saves, such as the states of modules of NNX, and `as_restored` the pytree that Orbax restores of what leafwise
    saved: for modules of NNX, the pure dicts of their states."""

    saved: Any
    target: Callable[[], Any]
    as_tree: Callable[[Any], Any] = lambda run: run
    as_restored: Callable[[Any], Any] = lambda run: run


class Case(NamedTuple):
    """`expected` is "exact", or "refused" if the target has a random key of another implementation."""

    name: str
    build: Callable[[int], Run]
    expected: str = "exact"


class Way(NamedTuple):
    """How a state is saved to a path, and how it is loaded from it: by `restore` of Orbax into a pytree, or by leafwise
    if there is none."""

    name: str
    save: Callable[[Path, Run], None]
    restore: Callable[[Path, Any], Any] | None = None
    is_saved_by_leafwise: bool = False

    def pytree(self, run: Run) -> Callable[[Any], Any]:
        """What makes the pytrees that are compared."""
        return run.as_restored if self.restore is not None and self.is_saved_by_leafwise else run.as_tree


class Outcome(NamedTuple):
    """`kind` is one of KINDS."""

    kind: str
    why: str = ""


KINDS = ("exact", "refused", "refused by Orbax", "wrong", "crashed", "optax cannot")


class OrbaxError(Exception):
    """Any error that Orbax raises."""


# -- everything in optax -----------------------------------------------------------------------------------------------


def params(seed: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(seed), 3)
    dense = {"kernel": jax.random.normal(keys[0], (4, 3)), "bias": jax.random.normal(keys[1], (3,))}
    return {"dense": dense, "table": jax.random.normal(keys[2], (8, 8))}


MASK = {"dense": {"kernel": True, "bias": False}, "table": True}
LABELS = {"dense": "first", "table": "second"}
SCHEDULE = optax.cosine_decay_schedule(0.1, 100)


def quadratic(tree: Any, *_: Any, loss: Any = None, obj_fn: Any = None) -> Any:
    return sum((leaf**2).sum() for leaf in jax.tree.leaves(tree))


def _adam() -> Any:
    return optax.adam(0.1)


# Arguments of functions of optax that have no default.
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "adv_optimizer": lambda: optax.sgd(0.1),
    "base_optimizer": _adam,
    "clipping": lambda: 0.1,
    "decay": lambda: 0.9,
    "eta": lambda: 0.1,
    "fast_optimizer": _adam,
    "freeze_mask": lambda: MASK,
    "gamma": lambda: 0.5,
    "inner": _adam,
    "inner_factory": lambda: optax.adamw,
    "l2_norm_clip": lambda: 1.0,
    "learning_rate": lambda: 0.1,
    "mask": lambda: MASK,
    "max_backtracking_steps": lambda: 5,
    "max_consecutive_errors": lambda: 3,
    "max_delta": lambda: 1.0,
    "max_linesearch_steps": lambda: 5,
    "max_norm": lambda: 1.0,
    "measure": lambda: lambda updates: jax.tree.map(abs, updates),
    "measure_name": lambda: "norm",
    "noise_multiplier": lambda: 0.1,
    "optimizer": _adam,
    "param_labels": lambda: LABELS,
    "seed": lambda: 0,
    "should_transform_fn": lambda: lambda step, **_: step % 2 == 0,
    "slow_step_size": lambda: 0.5,
    "step_size": lambda: 0.1,
    "step_size_fn": lambda: SCHEDULE,
    "sync_period": lambda: 2,
    "threshold": lambda: 1.0,
    "transforms": lambda: {"first": _adam(), "second": optax.sgd(0.1, momentum=0.9)},
}

# With other arguments than those above, or several of them together.
OTHERS: dict[str, Callable[[], Any]] = {
    "MultiSteps": lambda: optax.MultiSteps(_adam(), 2).gradient_transformation(),
    "MultiSteps, skipping": lambda: optax.MultiSteps(
        _adam(), 2, should_skip_update_fn=optax.skip_not_finite
    ).gradient_transformation(),
    "adafactor, factored": lambda: optax.adafactor(0.1, min_dim_size_to_factor=2, momentum=0.9),
    "adam, bfloat16 moments": lambda: optax.adam(SCHEDULE, mu_dtype=jnp.bfloat16),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.masked(_adam(), MASK), optax.scale(-0.1)),
    "galore, rank 2": lambda: optax.contrib.galore(0.1, rank=2),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE, weight_decay=0.1),
    "inject_stateful_hyperparams": lambda: optax.inject_stateful_hyperparams(optax.sgd)(learning_rate=0.1),
    "lw.groups": lambda: lw.groups(params(0), [lw.no_decay()], lr=0.1).optax(
        lambda lr, weight_decay=0.1: optax.adamw(lr, weight_decay=weight_decay)
    ),
    "monitor": lambda: optax.chain(optax.monitor({"norm": lambda updates, **_: optax.tree.norm(updates)}), _adam()),
    "named_chain": lambda: optax.named_chain(("clip", optax.clip(1.0)), ("adam", _adam()), ("scale", optax.scale(2.0))),
    "partition with set_to_zero": lambda: optax.partition({"first": _adam(), "second": optax.set_to_zero()}, LABELS),
    "reduce_on_plateau in a chain": lambda: optax.chain(_adam(), optax.contrib.reduce_on_plateau()),
    "rmsprop, centered, with momentum": lambda: optax.rmsprop(0.1, centered=True, momentum=0.9),
    "sgd, nesterov": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "two masks": lambda: optax.chain(
        optax.masked(_adam(), MASK), optax.masked(optax.sgd(0.1), jax.tree.map(lambda is_in: not is_in, MASK))
    ),
}


def transformations() -> dict[str, Callable[[], Any]]:
    """A function for each transformation of optax, by name. Also those that need more than ARGUMENTS are tried."""
    makers: dict[str, Callable[[], Any]] = {}
    for library, prefix in ((optax, ""), (optax.contrib, "contrib.")):
        for name, function in sorted(vars(library).items()):
            if inspect.isfunction(function) and name[0] != "_" and _makes_transformations(function):
                makers[prefix + name] = lambda function=function: function(**_arguments(function))
    return makers | OTHERS


def _makes_transformations(function: Any) -> bool:
    returned = inspect.signature(function).return_annotation
    if returned is inspect.Signature.empty:  # not all functions have one
        return _required(function) <= ARGUMENTS.keys() and hasattr(function(**_arguments(function)), "update")
    return "GradientTransformation" in str(returned) and function.__name__ not in _HELPERS


_HELPERS = frozenset({"chain", "inject_hyperparams", "inject_stateful_hyperparams", "named_chain", "stateless"}) | {
    "stateless_with_tree_map",  # they take functions, and have no state
    "with_extra_args_support",
}


def _required(function: Any) -> set[str]:
    return {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }


def _arguments(function: Any) -> dict[str, Any]:
    return {name: ARGUMENTS[name]() for name in _required(function) if name in ARGUMENTS}


def _trained(tx: Any, tree: Any) -> tuple[Any, Any]:
    """Parameters and the state after a few steps, with all that a transformation may ask for."""
    tx = optax.with_extra_args_support(tx)
    state = tx.init(tree)
    for _ in range(STEPS):
        value, gradients = jax.value_and_grad(quadratic)(getattr(tree, "fast", tree))
        extra = {"value": value, "loss": value, "grad": gradients, "value_fn": quadratic, "obj_fn": quadratic}
        examples = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), gradients)
        try:
            updates, state = tx.update(gradients, state, tree, **extra)
        except TypeError:  # it takes nothing else
            updates, state = tx.update(gradients, state, tree)
        except ValueError:  # for differential privacy, there is a gradient for each example
            updates, state = tx.update(examples, state, tree, **extra)
        tree = optax.apply_updates(tree, updates)
    return tree, state


def run_of(make: Callable[[], Any], seed: int, wrap: Callable[[Any], Any] = lambda tree: tree) -> Run:
    tree, state = _trained(make(), wrap(params(seed)))
    saved = {"params": tree, "opt_state": state, "step": jnp.int32(STEPS)}
    fresh = {"params": tree, "opt_state": make().init(wrap(params(seed + 1))), "step": jnp.int32(0)}
    return Run(saved, lambda: jax.tree.map(_with_other_values, fresh))


def _with_other_values(leaf: Any) -> Any:
    """A leaf of the same type that has none of the values that are loaded into it."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jax.random.key_data(leaf) + 1, impl=jax.random.key_impl(leaf))
    if not isinstance(leaf, jax.Array | np.ndarray):
        return type(leaf)(77)
    return ~leaf if leaf.dtype == bool else leaf * 0 + 77


def is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key))


# -- keys, and Flax ----------------------------------------------------------------------------------------------------


def _key_run(saved: str, target: str) -> Callable[[int], Run]:
    def state(seed: int, implementation: str) -> Any:
        keys = jax.random.split(jax.random.key(seed, impl=implementation), 4)
        noise = optax.add_noise(0.1, 0.5, keys[0]).init(params(seed))
        return {"params": params(seed), "opt_state": noise, "rng": keys[1], "keys": keys[2:]}

    return lambda seed: Run(state(seed, saved), lambda: state(seed + 1, target))


def _nnx_run(make: Callable[[], Any]) -> Callable[[int], Run]:
    def begin(seed: int) -> Any:
        model = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(seed)), nnx.BatchNorm(3, rngs=nnx.Rngs(seed)))
        return {"model": model, "optimizer": nnx.Optimizer(model, make(), wrt=nnx.Param)}

    def build(seed: int) -> Run:
        saved = begin(seed)
        for _ in range(STEPS):
            gradients = nnx.grad(lambda model: (model(jnp.arange(8.0).reshape(2, 4)) ** 3).sum())(saved["model"])
            saved["optimizer"].update(saved["model"], gradients)

        def state(run: Any) -> Any:
            return {name: nnx.state(run[name]) for name in run}

        def pure_dict(run: Any) -> Any:
            return {name: nnx.to_pure_dict(of_module) for name, of_module in state(run).items()}

        return Run(saved, lambda: begin(seed + 1), state, pure_dict)

    return build


NNX = ("adamw", "sgd", "chain", "two masks", "inject_hyperparams", "MultiSteps")


def cases() -> Iterator[Case]:
    makers = transformations()
    for name, make in makers.items():
        wrap = optax.LookaheadParams.init_synced if name == "lookahead" else lambda tree: tree
        yield Case(name, lambda seed, make=make, wrap=wrap: run_of(make, seed, wrap))
    for name in NNX:
        # The masks are for other parameters, so that a mask here is a function.
        make = _MASKS_OF_NNX.get(name, makers[name])
        yield Case(f"nnx.Optimizer: {name}", _nnx_run(make))
    for saved in IMPLEMENTATIONS:
        for target in IMPLEMENTATIONS:
            name = f"key: {saved}" if saved == target else f"key: {saved} into {target}"
            yield Case(name, _key_run(saved, target), "exact" if saved == target else "refused")


def _matrices(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, tree)


_MASKS_OF_NNX: dict[str, Callable[[], Any]] = {
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.masked(_adam(), _matrices), optax.scale(-0.1)),
    "two masks": lambda: optax.chain(optax.masked(_adam(), _matrices), optax.masked(optax.sgd(0.1), _matrices)),
}


# -- ways to save and load ---------------------------------------------------------------------------------------------


@contextmanager
def _orbax() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise OrbaxError(f"{type(error).__name__}: {error}") from error


def _written_by(writer: Callable[[Path, Any], None]) -> Callable[[Path, Run], None]:
    def save(path: Path, run: Run) -> None:
        with _orbax():
            writer(path, run.as_tree(run.saved))

    return save


def _saved_as(format_name: Any) -> Callable[[Path, Run], None]:
    def save(path: Path, run: Run) -> None:
        lw.save(run.saved, path, format=format_name)

    return save


def _restored_by_standard(path: Path, target: Any) -> Any:
    with _orbax(), ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, target)


def _restored_by_pytree(path: Path, target: Any) -> Any:
    with _orbax(), ocp.PyTreeCheckpointer() as checkpointer:
        arguments = ocp.checkpoint_utils.construct_restore_args(target)
        return checkpointer.restore(path, item=target, restore_args=arguments)


WAYS = [
    Way("Orbax → Orbax", _written_by(standard), _restored_by_standard),
    *(
        Way(f"Orbax ({name}) → `lw.load`", _written_by(WRITERS[name]))
        for name in ("StandardCheckpointer", "CheckpointManager", "OCDBT and zarr", "zarr", "zarr3")
    ),
    Way("`lw.save` → StandardCheckpointer", _saved_as("orbax"), _restored_by_standard, True),
    Way("`lw.save` → PyTreeCheckpointer", _saved_as("orbax"), _restored_by_pytree, True),
    Way("`lw.save` to Orbax → `lw.load`", _saved_as("orbax"), None, True),
    Way("`lw.save` to safetensors → `lw.load`", _saved_as("safetensors"), None, True),
]


def outcomes(case: Case, folder: Path, seed: int = 0) -> dict[str, Outcome]:
    """What happens to a case in each way. Only leafwise is asked to refuse keys of another implementation."""
    ways = [way for way in WAYS if case.expected == "exact" or way.restore is None]
    try:
        run = case.build(seed)
    except Exception as error:
        return {way.name: Outcome("optax cannot", f"{type(error).__name__}: {_reason(error)}") for way in ways}
    return {way.name: _outcome(way, run, folder / str(number)) for number, way in enumerate(ways)}


def _outcome(way: Way, run: Run, path: Path) -> Outcome:
    try:
        way.save(path, run)
        target = run.target()
        tree = way.pytree(run)
        loaded = tree(lw.load(target, path)) if way.restore is None else way.restore(path, tree(target))
    except lw.Error as error:
        return Outcome("refused", _reason(error))
    except OrbaxError as error:
        return Outcome("refused by Orbax", _reason(error))
    except Exception as error:
        return Outcome("crashed", f"{type(error).__name__}: {_reason(error)}")
    difference = first_difference(tree(run.saved), loaded)
    return Outcome("wrong", difference) if difference else Outcome("exact")


def _reason(error: Exception) -> str:
    return " | ".join(line.strip() for line in str(error).splitlines()[:4])


def first_difference(expected: Any, loaded: Any) -> str:
    """Where two trees differ in their types, dtypes, shapes or bits; empty if they do not."""
    if jax.tree.structure(expected) != jax.tree.structure(loaded):
        return f"structure: {jax.tree.structure(loaded)} instead of {jax.tree.structure(expected)}"
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(loaded), strict=True)
    for (path, leaf), other in pairs:
        if isinstance(leaf, jax.Array) != isinstance(other, jax.Array) or is_key(leaf) != is_key(other):
            return f"{jax.tree_util.keystr(path)}: a {type(other)} instead of {type(leaf)}"
        if is_key(leaf):
            if leaf.dtype != other.dtype:
                return f"{jax.tree_util.keystr(path)}: a key of {other.dtype} instead of {leaf.dtype}"
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        if not same(leaf, other):
            return f"{jax.tree_util.keystr(path)}: {other} instead of {leaf}"
    return ""


# -- the table ---------------------------------------------------------------------------------------------------------

Found = list[tuple[Case, dict[str, Outcome]]]


def table(found: Found) -> str:
    """The counts for each way, and the cases that are not exact or, for other keys, not refused."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("optax", "orbax-checkpoint", "flax"))
    lines = [f"{len(found)} states, of {versions}.", "", f"| | {' | '.join(KINDS)} |", f"|---|{'--:|' * len(KINDS)}"]
    for way in WAYS:
        kinds = [by_way[way.name].kind for case, by_way in found if case.expected == "exact"]
        lines.append(f"| {way.name} | {' | '.join(str(kinds.count(kind)) for kind in KINDS)} |")
    others = [outcome.kind for case, by_way in found if case.expected == "refused" for outcome in by_way.values()]
    lines += ["", f"Random keys as keys of another implementation: {others.count('refused')} of {len(others)} refused."]
    names: dict[tuple[str, str], list[str]] = {}
    for case, way, outcome in _unexpected(found):
        names.setdefault((way, outcome.kind), []).append(f"`{case.name}`")
    if names:
        lines += ["", "| way | | cases |", "|---|---|---|"]
        lines += [f"| {way} | {kind} | {', '.join(of_kind)} |" for (way, kind), of_kind in names.items()]
    return "\n".join(lines)


def _unexpected(found: Found) -> Iterator[tuple[Case, str, Outcome]]:
    """The outcomes that are not expected. A case that optax cannot run is the same in every way."""
    for case, by_way in found:
        for way, outcome in by_way.items():
            if outcome.kind == "optax cannot":
                yield case, "all", outcome
                break
            if outcome.kind != case.expected:
                yield case, way, outcome


def main() -> int:
    options = sweeps.parser(__doc__, "cases, by a part of their names").parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # Orbax logs each save
    found: Found = []
    for case in cases():
        if options.only and not any(part in case.name for part in options.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found.append((case, outcomes(case, Path(folder), options.seed)))
        for _, way, outcome in _unexpected(found[-1:]):
            print(f"{case.name:28} {way:42} {outcome.kind:16} {outcome.why[:400]}", flush=True)
    print(table(found))
    if not options.only:
        sweeps.record("make optax", {"optax": table(found)}, options.seed)
    return 1 if any(outcome.kind not in ("optax cannot", "exact") for _, _, outcome in _unexpected(found)) else 0


if __name__ == "__main__":
    sys.exit(main())
