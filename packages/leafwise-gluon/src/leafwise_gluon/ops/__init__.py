"""Operations over plain tensors, with the results, dtypes, copies and gradients of MXNet."""
