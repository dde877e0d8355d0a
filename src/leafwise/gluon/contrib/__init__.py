"""`mxnet.gluon.contrib`."""
