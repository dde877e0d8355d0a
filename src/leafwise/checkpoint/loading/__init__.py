"""`lw.load`: applies a plan that is complete. First comes everything that can fail, then the changes."""
