"""Compares random pairs of objects with `lw.diff`: pairs that differ in exactly one thing, and equal pairs.

    python -m tools.random_pairs              300 pairs that differ and 300 equal ones, and records the table
    python -m tools.random_pairs --seed 3 17  pair 17 of this seed, and how it differs

Even numbers are pairs that differ: one of `CHANGES`, at one of `PLACES` beside a tensor and some plain values. Odd
numbers are a random object that is drawn, and written, twice. The result is `right`; `not compared`, if the diff says
that it could not compare something; `refused`; `wrong`; or it `crashed`, with an error that is not an `lw.Error`.
"""

import argparse
import functools
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tools import sweeps
from tools.random_pickles import FORMATS
from tools.random_values import CHANGES, Thing, Values, with_attributes

import leafwise as lw

PAIRS = 600
OUTCOMES = ("right", "not compared", "refused", "wrong", "crashed")


class Pair(NamedTuple):
    """Two objects, how they are stored, and in what they differ; empty if they are equal."""

    first: Any
    second: Any
    stored: str
    protocol: int
    change: str


class Outcome(NamedTuple):
    kind: str
    stored: str
    is_equal: bool
    why: str


# Where the values are that differ.
PLACES: dict[str, Callable[[Any], Any]] = {
    "in a dict": lambda value: value,
    "in a dict in a list": lambda value: [1, {"a": value}],
    "in a tuple": lambda value: (value, "a"),
    "in a set": lambda value: {value, "b"},
    "a key": lambda value: {"a": 1, value: 2},
    "in a key": lambda value: {(value, 1): 2},
    "in an object": lambda value: with_attributes(Thing(), a=value),
    "in a namespace": lambda value: argparse.Namespace(a=value),
    "in arguments": lambda value: functools.partial(print, value),
    "in a deque": lambda value: deque([value]),
    "in an array of objects": lambda value: _in_array(value),
}


def _in_array(value: Any) -> Any:
    objects = np.empty(2, object)
    objects[1] = value
    return objects


def drawn(seed: int, number: int) -> Pair:
    rng = random.Random(f"{seed} {number}")
    stored = rng.choice(["live", *FORMATS])
    protocol = rng.choice(FORMATS[stored].protocols) if stored in FORMATS else 0
    if number % 2:
        state = rng.getstate()
        first = {"w": torch.ones(2), "value": Values(rng).value()}
        rng.setstate(state)
        return Pair(first, {"w": torch.ones(2), "value": Values(rng).value()}, stored, protocol, "")
    change = list(CHANGES)[number // 2 % len(CHANGES)]
    is_array = isinstance(CHANGES[change][0], np.ndarray)
    stored = rng.choice(["npz", stored] if is_array else ["lw.save", *[stored] * 5])
    places = list(PLACES)[:1] if stored == "npz" else rng.sample(list(PLACES), len(PLACES))
    return next(filter(None, (_pair(change, place, stored, protocol) for place in places)))


def _pair(change: str, place: str, stored: str, protocol: int) -> Pair | None:
    """None if the values cannot be at this place, or have the same name there: paths contain keys as text."""
    values = CHANGES[change]
    if place in ("a key", "in a key") and str(values[0]) == str(values[1]):
        return None
    try:
        first, second = ({"w": torch.ones(2), "epoch": 3, "value": PLACES[place](value)} for value in values)
    except TypeError:  # it cannot be a key
        return None
    return Pair(first, second, stored, protocol, f"{change}, {place}")


def _write(pair: Pair, value: Any, path: Path) -> Any:
    match pair.stored:
        case "live":
            return value
        case "npz":
            np.savez(path, w=value["w"].numpy(), value=value["value"])
            return path.with_suffix(".npz")
        case "lw.save":
            return lw.save(value, path.with_suffix(".safetensors"))
        case "several pickles":
            FORMATS[pair.stored].write([value, value["w"]], path, pair.protocol)
        case _:
            FORMATS[pair.stored].write(value, path, pair.protocol)
    return path


def outcome(seed: int, number: int, folder: Path) -> Outcome | None:
    """None if the pair cannot be written."""
    pair = drawn(seed, number)
    facts = pair.stored, not pair.change
    try:
        places = [_write(pair, value, folder / name) for name, value in (("a", pair.first), ("b", pair.second))]
    except lw.Error as error:
        return Outcome("refused", *facts, f"{pair.change}: {error}")
    except Exception:
        return None
    try:
        diff = lw.diff(*places)
        str(diff)
        kinds = {change.kinds for change in diff} - {("same",)}
        changes = [change for change in diff if change.kind != "same"]
        text = f"{pair.change or 'equal'}, protocol {pair.protocol}: {changes[:3]!r:.300}"
    except lw.Error as error:
        return Outcome("refused", *facts, f"{pair.change}: {error}")
    except Exception:
        return Outcome("crashed", *facts, f"{pair.change}: {traceback.format_exc(limit=-3)}")
    if kinds == {("unknown",)}:
        return Outcome("not compared", *facts, text)
    return Outcome("right" if diff.same == (not pair.change) else "wrong", *facts, text)


def table(found: list[Outcome]) -> str:
    lines = ["| pairs | " + " | ".join(OUTCOMES) + " |", "|---|" + "--:|" * len(OUTCOMES)]
    for is_equal in (False, True):
        for stored in ("live", "lw.save", "npz", *FORMATS):
            kinds = Counter(one.kind for one in found if (one.stored, one.is_equal) == (stored, is_equal))
            if kinds:
                counts = " | ".join(f"{kinds[kind]:,}" for kind in OUTCOMES)
                lines.append(f"| {'equal' if is_equal else 'different'}, {stored} | {counts} |")
    return "\n".join(lines)


def main() -> int:
    parser = sweeps.parser(__doc__, "pairs, by number")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[Outcome] = []
    for number in map(int, options.only or range(options.pairs)):
        with tempfile.TemporaryDirectory() as folder:
            one = outcome(options.seed, number, Path(folder))
        if one is None:
            continue
        found.append(one)
        if options.only or one.kind in ("wrong", "crashed"):
            print(f"\n{one.kind}, {one.stored}: python -m tools.random_pairs --seed {options.seed} {number}")
            print(f"  {one.why}", flush=True)
    print(table(found))
    if not options.only:
        sweeps.record("make pickles", {"object pairs": table(found)}, options.seed)
    return 1 if any(one.kind in ("wrong", "crashed") for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
