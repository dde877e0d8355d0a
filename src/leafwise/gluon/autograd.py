"""`mxnet.autograd`: whether operations are recorded, and whether layers behave as in training."""

from collections.abc import Iterator
from contextlib import contextmanager

from leafwise.gluon.arrays.autograd_state import STATE
from leafwise.gluon.arrays.gradients import backward
from leafwise.gluon.base import missing

__all__ = ["backward", "is_recording", "is_training", "pause", "predict_mode", "record", "train_mode"]


@contextmanager
def _mode(recording: bool | None, training: bool | None) -> Iterator[None]:
    before = STATE.recording, STATE.training
    STATE.recording = before[0] if recording is None else recording
    STATE.training = before[1] if training is None else training
    try:
        yield
    finally:
        STATE.recording, STATE.training = before


def record(train_mode: bool = True):  # type: ignore[no-untyped-def]
    """Operations in this scope are recorded, so that they can be differentiated.

    >>> from leafwise.gluon import autograd, np
    >>> x = np.arange(4)
    >>> x.attach_grad()
    >>> with autograd.record():
    ...     y = 2 * np.dot(x, x)
    >>> y.backward()
    >>> x.grad
    array([ 0.,  4.,  8., 12.])
    """
    return _mode(True, train_mode)


def pause(train_mode: bool = False):  # type: ignore[no-untyped-def]
    """Operations in this scope are not recorded."""
    return _mode(False, train_mode)


def train_mode():  # type: ignore[no-untyped-def]
    """Layers behave as in training."""
    return _mode(None, True)


def predict_mode():  # type: ignore[no-untyped-def]
    """Layers behave as in prediction."""
    return _mode(None, False)


def is_recording() -> bool:
    return STATE.recording


def is_training() -> bool:
    return STATE.training


__getattr__ = missing("autograd", {"grad": "use torch.autograd.grad"}, "torch.autograd may have an equivalent")
