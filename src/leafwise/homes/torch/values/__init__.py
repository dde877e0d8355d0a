"""The values of tensors: compared, measured, searched and filled, on whatever device they are."""
