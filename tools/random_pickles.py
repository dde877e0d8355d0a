"""Opens random nested pickles with leafwise, and compares everything that it shows with what their own loader returns.

    python -m tools.random_pickles              5,000 pickles, and records the table (minutes)
    python -m tools.random_pickles --seed 3 17  pickle 17 of this seed, and what is wrong with it

A pickle is `equal`; `partly opaque`, if leafwise shows some values only by the name of their class or dtype; `refused`;
`wrong`, if a value, a key or a tie differs or is lost; or it `crashed`, with an error that is not an `lw.Error`.
"""

import functools
import pickle
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import torch
from tools import sweeps
from tools.pickle_comparison import Comparison
from tools.random_values import Values

import leafwise as lw

PICKLES = 5_000
OUTCOMES = ("equal", "partly opaque", "refused", "wrong", "crashed")


class Outcome(NamedTuple):
    """`kind` is one of OUTCOMES; `why` are the differences, or the reason why a file is refused."""

    number: int
    format: str
    kind: str
    why: str = ""


# -- writing ---------------------------------------------------------------------------------------------------


class Format(NamedTuple):
    """How objects are written, with some protocol, and read by their own loader. `keeps_ties` is False if each tensor
    is stored separately, even if tensors share memory. `in_arrays` is the protocol of the pickles inside the file that
    contain arrays of objects, if these are pickles of their own."""

    protocols: tuple[int, ...]
    write: Callable[[Any, Path, int], Any]
    load: Callable[[Path], Any]
    keeps_ties: bool = False
    objects: int = 1
    in_arrays: int | None = None


def _dump(value: Any, path: Path, protocol: int) -> None:
    path.write_bytes(pickle.dumps(value, protocol))


def _load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def _dump_each(values: list[Any], path: Path, protocol: int) -> None:
    with path.open("wb") as file:
        for value in values:
            pickle.dump(value, file, protocol)


def _load_each(path: Path) -> list[Any]:
    values = []
    with path.open("rb") as file:
        while file.tell() < path.stat().st_size:
            values.append(pickle.load(file))
    return values


def _save(value: Any, path: Path, protocol: int) -> None:
    torch.save(value, path, pickle_protocol=protocol)


def _save_before_1_6(value: Any, path: Path, protocol: int) -> None:
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)


def _dump_joblib(value: Any, path: Path, protocol: int) -> None:
    joblib.dump(value, path, protocol=protocol)


_torch_load = functools.partial(torch.load, weights_only=False)
FORMATS = {
    **{f"pickle {protocol}": Format((protocol,), _dump, _load) for protocol in range(6)},
    "several pickles": Format((0, 1, 2, 3, 4, 5), _dump_each, _load_each, objects=3),
    "torch zip": Format((2, 3, 4, 5), _save, _torch_load, keeps_ties=True),
    "torch, before 1.6": Format((2, 3, 4, 5), _save_before_1_6, _torch_load, keeps_ties=True),
    "joblib": Format((2, 3, 4, 5), _dump_joblib, joblib.load, in_arrays=5),
}


class Written(NamedTuple):
    """A file, and what its own loader returns."""

    format: str
    protocol: int
    path: Path
    truth: Any


def written(seed: int, number: int, folder: Path) -> Written:
    """Draws an object, and writes it. What cannot be written, or not be read by its own loader, is drawn again."""
    rng = random.Random(f"{seed} {number}")
    name = list(FORMATS)[number % len(FORMATS)]
    form, path = FORMATS[name], folder / f"{number}.pickle"
    while True:
        draw, protocol = Values(rng), rng.choice(form.protocols)
        values = [draw.mapping(dict) if rng.random() < 0.5 else draw.value() for _ in range(form.objects)]
        try:
            form.write(values if form.objects > 1 else values[0], path, protocol)
            return Written(name, protocol, path, form.load(path))
        except Exception:
            path.unlink(missing_ok=True)


# -- the table -------------------------------------------------------------------------------------------------


def outcome(seed: int, number: int, folder: Path) -> Outcome:
    made = written(seed, number, folder)
    form = FORMATS[made.format]
    try:
        with lw.open(made.path) as t:
            str(t)
            found = Comparison(t, made.truth, made.protocol, form.in_arrays or made.protocol, form.keeps_ties)
    except lw.Error as error:
        return Outcome(number, made.format, "refused", str(error).replace(str(made.path), made.path.name))
    except Exception:
        return Outcome(number, made.format, "crashed", traceback.format_exc(limit=-3))
    finally:
        made.path.unlink()
    kind = "wrong" if found.problems else "partly opaque" if found.is_opaque else "equal"
    return Outcome(number, made.format, kind, "\n  ".join(found.problems[:5]))


def table(found: list[Outcome]) -> str:
    lines = ["| format | " + " | ".join(OUTCOMES) + " |", "|---|" + "--:|" * len(OUTCOMES)]
    for name in (*FORMATS, "all"):
        kinds = Counter(one.kind for one in found if name in (one.format, "all"))
        lines.append(f"| {name} | " + " | ".join(f"{kinds[kind]:,}" for kind in OUTCOMES) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = sweeps.parser(__doc__, "pickles, by number")
    parser.add_argument("--pickles", type=int, default=PICKLES)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in map(int, options.only or range(options.pickles)):
            found.append(one := outcome(options.seed, number, Path(folder)))
            if options.only or one.kind in ("wrong", "crashed"):
                print(f"\n{one.kind}, {one.format}: python -m tools.random_pickles --seed {options.seed} {number}")
                print(f"  {one.why}", flush=True)
    print(table(found))
    if not options.only:
        sweeps.record("make pickles", {"pickles": table(found)}, options.seed)
    return 1 if any(one.kind in ("wrong", "crashed") for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
