"""Opens random nested pickles with leafwise, and compares everything that it shows with what their own loader returns.

    python -m tools.random_pickles              5,000 pickles, and records the table (minutes)
    python -m tools.random_pickles --seed 3 17  pickle 17 of this seed, and what is wrong with it

A pickle is `equal`; `partly opaque`, if leafwise shows some values only by the name of their class or dtype; `refused`;
`wrong`, if a value, a key or a tie differs or is lost; or it `crashed` leafwise with an error that is not an `lw.Error`.
"""

import argparse
import datetime
import functools
import json
import pickle
import random
import struct
import sys
import tempfile
import traceback
import types
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import joblib
import numpy as np
import torch
from tools import sweeps
from tools.checkpoint_kinds.truth import Bits
from tools.random_values import Values

import leafwise as lw
from leafwise.core.dotted import VirtualNode
from leafwise.core.path import Entry
from leafwise.files.pickles.pickle_objects import GlobalName, StoredDeque
from leafwise.results import Opaque

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
    is stored separately, even if tensors share memory."""

    protocols: tuple[int, ...]
    write: Callable[[Any, Path, int], Any]
    load: Callable[[Path], Any]
    keeps_ties: bool = False
    objects: int = 1


def _pickle_each(objects: list[Any], path: Path, protocol: int) -> None:
    with path.open("wb") as file:
        for value in objects:
            pickle.dump(value, file, protocol)


def _unpickle_each(path: Path) -> list[Any]:
    with path.open("rb") as file:
        size = path.stat().st_size
        return list(iter(lambda: pickle.load(file) if file.tell() < size else _END, _END))


_END = object()


def _save_legacy(value: Any, path: Path, protocol: int) -> None:
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)


def _unpickle(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


_torch_load = functools.partial(torch.load, weights_only=False)
FORMATS = {
    **{
        f"pickle {protocol}": Format((protocol,), lambda value, path, protocol: _pickle_each([value], path, protocol), _unpickle)
        for protocol in range(6)
    },
    "several pickles": Format((0, 1, 2, 3, 4, 5), _pickle_each, _unpickle_each, objects=3),
    "torch zip": Format((2, 3, 4, 5), lambda value, path, protocol: torch.save(value, path, pickle_protocol=protocol), _torch_load, True),
    "torch, before 1.6": Format((2, 3, 4, 5), _save_legacy, _torch_load, True),
    "joblib": Format((2, 3, 4, 5), lambda value, path, protocol: joblib.dump(value, path, protocol=protocol), joblib.load),
}  # fmt: skip
