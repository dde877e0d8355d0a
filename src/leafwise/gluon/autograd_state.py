"""Whether operations are being recorded, and whether for training: one state for each thread, as in MXNet."""

import threading

import torch


class _AutogradState(threading.local):
    recording = False
    training = False


STATE = _AutogradState()


def differentiating() -> bool:
    """Whether operations on arrays are differentiated: inside `record()`, and outside of `torch.no_grad()`."""
    return STATE.recording and torch.is_grad_enabled()
