"""One pass over arrays: C code on CPUs, Triton on GPUs, and NumPy as the reference."""
