"""Values of PyTorch models and checkpoints: writing into live tensors and reading their bytes, modules that write
their state dicts in their own way, the names and layouts under which libraries store their models, and what is
refused."""
