"""Small files that cost much memory or time: some that did once, and random ones. `make costly` searches for more."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.long import SEED, count, short_or_long
from tools.costly_programs import KNOWN, random_program
from tools.fuzz_costly import MAX_SECONDS, Worker, max_megabytes

SHARE = 10  # opening a file may take a tenth of the default limits, and so a verb about a tenth of the time
RANDOM = short_or_long(25, 2_000)
_DRAW = random.Random(f"costly {SEED}")
SOME = _DRAW.sample(sorted(KNOWN), short_or_long(8, len(KNOWN)))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with contextlib.closing(Worker(Path(tmp_path_factory.mktemp("costly")), SHARE)) as made:
        yield made


def check(worker: Worker, program: object) -> None:
    costs = worker.measure(program)  # type: ignore[arg-type]
    assert not costs.foreign, costs
    assert costs.megabytes.amount < 2 * max_megabytes(SHARE), costs
    assert costs.seconds.amount < MAX_SECONDS, costs  # ten times what it should take: a hang guard, not a measurement


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_programs_that_were_costly_once_are_cheap_or_refused(name: str, worker: Worker) -> None:
    check(worker, KNOWN[name])


@pytest.mark.slow
def test_random_programs_are_cheap_or_refused(worker: Worker) -> None:
    for _ in range(RANDOM):
        check(worker, random_program(_DRAW, _DRAW.choice([20_000, 200_000])))
    count("costly programs", RANDOM)
