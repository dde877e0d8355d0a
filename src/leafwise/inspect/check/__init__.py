"""`lw.check`: a linter for parameters. Its rules are in `rules`, and read what `evidence` gathers."""
