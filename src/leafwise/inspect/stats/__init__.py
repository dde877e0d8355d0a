"""`lw.stats`: statistics of the values of every leaf."""
