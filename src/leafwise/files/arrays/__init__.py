"""Arrays in files: where the bytes of one are, and which of them an index needs. An array may also be in several
pieces, or be made from other stored arrays when it is read: assembled, summed or computed element by element."""
