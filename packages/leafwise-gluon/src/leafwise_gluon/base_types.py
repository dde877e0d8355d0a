"""`mxnet.base`: tuples of types for `isinstance`, and the names that Python 2 had."""

import numpy

string_types = (str,)
basestring = str
long = int
integer_types = (int, numpy.int32, numpy.int64)
numeric_types = (float, int, numpy.generic)
mx_real_t = numpy.float32


def py_str(text: bytes) -> str:
    """Bytes as text."""
    return text.decode("utf-8")
