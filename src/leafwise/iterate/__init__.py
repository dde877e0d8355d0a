"""Rules and groups, freezing, initial values, averages, clipping, and the tree as one vector."""
