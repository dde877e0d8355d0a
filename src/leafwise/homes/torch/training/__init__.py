"""What happens to parameters during training: optimizers and their state, groups, freezing, averages, clipping, one
vector of all parameters, and the gradient of a shared parameter, use by use."""
