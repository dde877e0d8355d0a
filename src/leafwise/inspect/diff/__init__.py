"""`lw.diff`: what changed between two trees, leaf by leaf."""
