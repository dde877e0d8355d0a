"""`mxnet.nd`: the functions over the arrays of MXNet 1.x."""
