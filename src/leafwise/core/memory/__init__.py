"""Where elements are in memory, and who shares them: regions of arrays that overlap, which are ties, and the parts
that sharded arrays have in each process, as runs and boxes of elements."""
