"""Whether operations are being recorded, and whether for training: one state for each thread, as in MXNet."""

import threading


class _State(threading.local):
    recording = False
    training = False


STATE = _State()
