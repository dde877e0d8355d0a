"""`lw.check` notices every file that runs code when its own loader opens it: tools/payloads has a thousand of them."""

import os
import random
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import pytest
from tests.long import SEED, count, short_or_long
from tools import harmless_files, payloads, scan_corpus
from tools.payloads import Made, Payload, called_later

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not hasattr(os, "fork"), reason="the runner forks")


def sample() -> list[Payload]:
    """Some payloads of each mechanism, and those that were found last; all of them in `make long`."""
    by_mechanism = defaultdict(list)
    for payload in payloads.corpus():
        by_mechanism[payload.mechanism].append(payload)
    rng = random.Random(SEED)
    of_each = short_or_long(3, 10_000)
    drawn = [payload for group in by_mechanism.values() for payload in rng.sample(group, min(of_each, len(group)))]
    return [*{payload.name: payload for payload in (*drawn, *called_later.payloads())}.values()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    """The payloads that really run here: what some of them call is not in every version of Python or of a library."""
    folder = tmp_path_factory.mktemp("payloads") / "all"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = payloads.generate(folder, sample())
        ran = payloads.run(written, folder)
    running = [one for one in written if not ran[one.name]]
    assert len(running) >= 0.9 * len(written), {name: why for name, why in ran.items() if why}
    count("files that run code", len(running))
    return running


@pytest.mark.slow
def test_every_file_that_runs_code_is_noticed(made: list[Made]) -> None:
    found = [scan_corpus.outcome(one) for one in made]
    unnoticed = [one for one in found if one.kind not in ("error", "warning only", "refused")]
    assert not unnoticed, [(one.made.name, one.made.loader, one.why) for one in unnoticed]


@pytest.mark.slow
def test_checking_a_file_does_not_run_it(made: list[Made]) -> None:
    for one in made:
        markers = Path(one.marker).parent
        for marker in markers.glob(f"{Path(one.marker).name}*"):
            marker.rename(markers / f"ran {marker.name}")
        scan_corpus.scanned(one.file)
        assert not list(markers.glob(f"{Path(one.marker).name}*")), one.name


@pytest.mark.slow
def test_harmless_files_do_not_run_code() -> None:
    found = harmless_files.scan(SEED, short_or_long(30, 500), scan_corpus.scanned)
    assert not [one for one in found if one[1] in ("error", "crashed")]
