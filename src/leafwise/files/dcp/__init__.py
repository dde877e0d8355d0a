"""PyTorch Distributed Checkpoint: a folder with a pickle called `.metadata`, and files with pieces of tensors. Read
and written without PyTorch, with a record of leafwise's own beside them."""
