"""JAX: arrays, pytrees, Equinox and Flax NNX. Nothing here is imported unless the program has imported JAX."""
