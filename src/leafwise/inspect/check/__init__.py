"""`lw.check`: a linter for parameters. The rules are in `rules`; they read the facts that `evidence` collects."""
