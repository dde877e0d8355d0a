"""JAX: its arrays, pytrees and the modules of its libraries; one file for each capability."""
