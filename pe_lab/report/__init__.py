"""Reports of results as HTML: comparisons, figures with their code, and recommended encodings.

What is reported: `report_subject` (results, baseline, metric), `tuned` (a study whose seeds tune for themselves).
The first screen: `answer`, with `best_candidates` (which encodings may be the best, and how to say it), `lengths`,
`layers` and `swept_rates` (what a study measures beside the loss), `cautions` and `training_setup` (notes), and
`overview_figures`.
The sections below: `sections` (their order), `comparing`, `recommendations`, `sequential_verdicts`,
`setting_sensitivity`, `attention`.
The form: `parts` (what sections consist of), `page` and `inline_svg` (HTML), `paper` (LaTeX and figures as files).
"""
