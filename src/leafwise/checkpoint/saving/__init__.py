"""`lw.save`: what of a tree goes into a file, and writing it, at once, in the background or with all ranks."""
