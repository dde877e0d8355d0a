"""Triton's kernels are run by its interpreter, which it must know before it is first imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
