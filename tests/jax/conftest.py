"""Eight simulated devices on the CPU, for sharded arrays; this must be set before JAX is first imported.

With JAX_PLATFORMS=cuda,cpu, which `make gpu` sets, the default device is a GPU, and sharded arrays are still on CPUs.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # GPUs would round to 10 bits
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
