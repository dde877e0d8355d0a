"""Statistics of JAX arrays, compiled by XLA; large arrays on a GPU by a kernel in Pallas."""
