"""The gallery: results, claims and a page for each encoding, as a part of the documentation or a site of its own.

What pages are made of:
    gallery_data                                 all of it, read once
    definitions, encoding_families               what encodings.yaml says of each encoding; the order of families
    portrait, kernels                            class, properties and picture of an encoding; its curves
    samples                                      a sequence of a task and its sizes
    extrapolation, pairwise                      what holds at longer lengths; an encoding against another one
    need_recommendations                         what to use for a need
    claim_tests, claim_text, claim_figure        the parts of a claim: tests and verdicts, words and tables, drawings
Pages:
    encoding_page, task_page                     one for each encoding and task
    leaderboard_page, needs_page, claims_page    all encodings on all tasks; needs; claims
    pages, shared_values                         lists and all pages together; what every template may need
Form:
    gallery_page, site                           a page as Markdown and HTML; the files of a site
    formulas, markers                            LaTeX as browsers show it; markers of encodings as SVG
    length_figure, cost_figure                   results against the length of the test; loss against CPU time
"""
