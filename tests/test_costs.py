"""The tables of docs/scale.md, from figures that are known."""

import math
from pathlib import Path

from tools import scale


def counts(ranks: int) -> scale.Figures:
    """A verb that receives 7 bytes per rank and 100 for each leaf, and one whose leaves cost more with more ranks."""
    models = [(leaves, leaves * side**2) for leaves, side in scale.MODELS]
    return {
        "stats": {model: scale.Counted(received=7 * ranks + 100 * model[0], store=0) for model in models},
        "save dcp": {model: scale.Counted(store=30 * model[0] * ranks) for model in models},
    }


def test_costs_grow_with_the_leaves_and_the_ranks_as_they_were_counted() -> None:
    every = {ranks: counts(ranks) for ranks in scale.COUNTS}
    assert scale.solved(every[8]["stats"], "received") == (56, 100)
    ranks, leaves = scale.LARGEST_RANKS, scale.LEAVES
    assert math.isclose(scale.extrapolated(every, "stats", "received"), 7 * ranks + 100 * leaves)
    assert math.isclose(scale.extrapolated(every, "save dcp", "store"), 30 * leaves * ranks)
    table = scale.tables(every)
    assert "| stats | 51 kB | 51 kB | 51 kB | 51 kB |" in table
    assert "| save dcp | 0 | 30 GB | 220 GB |" in table
    assert max(map(len, table.splitlines())) <= 80


def test_the_page_has_the_tables() -> None:
    page = Path(scale.PAGE).read_text("utf-8")
    table = page.partition("<!-- costs -->")[2].partition("<!-- /costs -->")[0]
    assert table.count("| stats |") == 3  # received, memory for each leaf, extrapolated
