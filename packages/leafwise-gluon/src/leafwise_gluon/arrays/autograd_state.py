"""Whether operations are recorded, and whether layers behave as in training: one state per thread, as in MXNet."""

import threading

import torch


class _AutogradState(threading.local):
    recording = False
    training = False
    backward_trains = True  # whether the backward pass under way is in training mode, as by default


STATE = _AutogradState()


def differentiating() -> bool:
    """Whether operations on arrays are recorded: inside `record()`, unless inside `torch.no_grad()`."""
    return STATE.recording and torch.is_grad_enabled()
