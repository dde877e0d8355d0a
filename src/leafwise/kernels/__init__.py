"""One pass over arrays: C code on CPUs (`c`, which the modules here call), Triton and XLA on GPUs, and NumPy as the
reference."""
