"""Tensors on a GPU: kernels that run over all of them in one launch, tables of their addresses that are kept as long
as they do not move, and copies from and to the host through pinned memory."""
