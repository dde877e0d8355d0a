"""The verbs that read the parameters of a model or a file without changing them: one folder each for stats, check, diff
and image, and modules that several of them share."""
