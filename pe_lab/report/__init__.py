"""A report of results: what was asked, what came out, how sure it is, and how to draw each figure again."""
