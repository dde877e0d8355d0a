"""Errors survive pickling, copying and the way from another process."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise import errors
from leafwise.errors import Error, Unsupported


def every_error(root: type[Error] = Error) -> list[type[Error]]:
    return [root, *(one for child in root.__subclasses__() for one in every_error(child))]


def made(cls: type[Error]) -> Error:
    return cls("torch", "be saved", "it is\nsparse") if cls is Unsupported else cls("at \"a.b\": 'x' is wrong")


@pytest.mark.parametrize("cls", every_error(), ids=lambda cls: cls.__name__)
def test_every_error_survives_a_pickle_and_a_copy(cls: type[Error]) -> None:
    error = made(cls)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is cls
        assert (str(again), again.args) == (str(error), error.args)
        assert vars(again).keys() == vars(error).keys()


def test_what_an_error_says_besides_its_message_survives_too() -> None:
    damaged = pickle.loads(pickle.dumps(errors.ChecksumError("damaged", ("a", "b"))))
    assert damaged.leaves == ("a", "b")
    unsupported = pickle.loads(pickle.dumps(Unsupported("jax", "write", "immutable")))
    assert (unsupported.home, unsupported.capability) == ("jax", "write")
    with pytest.raises(lw.LoadError) as caught:
        lw.load(nn.Linear(2, 2), {"weight": torch.ones(3)})
    assert caught.value.plan is not None
    assert pickle.loads(pickle.dumps(caught.value)).plan is None


def refused(_: int) -> None:
    raise Unsupported("torch", "be saved", "it is sparse")


@pytest.mark.slow
def test_an_error_in_a_process_pool_reaches_who_waits_for_it() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(refused, 1)
        with pytest.raises(Unsupported, match="torch cannot be saved: it is sparse"):
            found.result(timeout=120)
