MISSING: tuple[tuple[str, str], ...] = (("mxnet.symbol.*", "write imperative code with np or nd"),)
