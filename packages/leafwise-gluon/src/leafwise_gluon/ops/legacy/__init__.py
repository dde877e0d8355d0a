"""The operations of `mxnet.nd` over plain tensors, where they differ from those of `mxnet.np`.

Their arguments have MXNet's names and defaults, so that `nd` exposes them as they are.
"""
