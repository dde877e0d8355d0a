"""Kernels for GPUs, written in Triton (`triton_*`), and the launches of each (`cuda*`): one for all arrays, and one
copy of the results back."""
