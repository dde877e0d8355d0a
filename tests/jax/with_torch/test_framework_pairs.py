"""Random pairs of models with one architecture: what is loaded computes the same, or the load is refused, or it warns.

`python -m tools.framework_pairs` tries hundreds of pairs; these are a few that have everything that can be drawn.
"""

from pathlib import Path

import pytest
from tools.framework_pairs import FLAGS, JAX, SOURCES, TORCH, Outcome, Pair, drawn, outcome

SEEDS = (
    *(12, 13, 20, 22, 36, 37, 49, 59, 75, 82, 83, 93, 98, 101, 107),
    *(110, 142, 148, 186, 254, 259, 385, 391, 415, 417, 477, 509, 523, 604, 717),
)
PAIRS = {seed: drawn(seed) for seed in SEEDS}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    folders: dict[int, Path] = {seed: tmp_path_factory.mktemp(f"pair{seed}") for seed in PAIRS}
    return {seed: outcome(pair, folders[seed]) for seed, pair in PAIRS.items()}


@pytest.mark.parametrize("seed", PAIRS)
@pytest.mark.filterwarnings("ignore")
def test_a_pair_computes_the_same_or_is_refused(seed: int, outcomes: dict[int, Outcome]) -> None:
    kind, why = outcomes[seed]
    assert kind not in ("wrong", "crashed"), f"{PAIRS[seed]}\n{why}"


@pytest.mark.filterwarnings("ignore")
def test_some_pairs_are_exact_and_some_are_refused(outcomes: dict[int, Outcome]) -> None:
    assert {"exact", "refused"} <= {one.kind for one in outcomes.values()}


def test_the_pairs_have_everything_that_can_be_drawn() -> None:
    def has(pair: Pair) -> set[object]:
        is_square, from_torch = len(set(pair.layers[-1].sizes)) == 1, pair.source == TORCH
        kinds = {(pair.architecture, from_torch), (pair.architecture, "square" if is_square else "")}
        return {*kinds, ("from", pair.source), ("to", pair.target), pair.stored, pair.renames, *pair.flags}

    everything = set().union(*(has(drawn(seed)) for seed in range(300)))
    assert {*FLAGS, *SOURCES, *(("from", name) for name in (TORCH, *JAX))} <= everything
    assert set().union(*map(has, PAIRS.values())) == everything
