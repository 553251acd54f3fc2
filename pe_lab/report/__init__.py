"""Reports of results as HTML: comparisons, figures with their code, and a choice of encodings.

What is reported: `question` (the subject: results, baseline, metric), `tuned` (one whose seeds tune for themselves).
The first screen: `answer`, with `standing` (which encodings may be the best, and how to say it), `lengths`, `layers`
and `rates` (what a study measures beside the loss), `cautions` and `effort` (notes), `overview_figures`.
The sections below: `sections` (their order), `comparing`, `choice`, `decided`, `elsewhere`, `attention`.
The form: `parts` (what sections consist of), `page` and `inline_svg` (HTML), `paper` (LaTeX and figures as files).
"""
