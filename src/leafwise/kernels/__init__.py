"""One pass over arrays: NumPy says what is right, C does it on CPUs, Triton on GPUs."""
