"""Reports of results as HTML and Markdown: comparisons, figures with their code, and a choice of encodings."""
