"""Arrays that behave like those of MXNet: of `mxnet.np`, and of `mxnet.nd`."""
