"""The rules of `lw.check`, one function each, listed by their codes in `registry`."""
