"""Which files are collected: those that need JAX only where it is installed. `make test` runs them in environments that
have it, with and without PyTorch."""

from importlib.util import find_spec

JAX_FILES = [
    "src/leafwise/homes/jax/*",
    "src/leafwise/iterate/group_labels.py",  # whose examples need JAX
    "src/leafwise/iterate/trainable.py",
    "src/leafwise/kernels/xla/*",
    "tests/jax/*",
]

collect_ignore_glob = [] if find_spec("jax") else JAX_FILES
