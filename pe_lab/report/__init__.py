"""Reports of results as HTML: comparisons, figures with their code, and a choice of encodings."""
