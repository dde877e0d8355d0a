"""`lw.image`: the values of a leaf as a picture."""
