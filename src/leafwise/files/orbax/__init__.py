"""Orbax checkpoints: a folder with `_METADATA`, which lists the values of a tree, and their arrays in zarr. Read and
written with tensorstore, without JAX."""
