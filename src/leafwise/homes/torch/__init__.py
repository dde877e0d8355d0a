"""PyTorch: its modules and tensors, and its optimizers; one file for each capability."""
