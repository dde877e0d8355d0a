"""What verbs return: results, which print and convert to JSON, HTML and DataFrames; the statistics of arrays and how
those of parts are combined; how much two arrays differ; and the lines that are drawn from them."""
