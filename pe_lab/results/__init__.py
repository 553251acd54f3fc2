"""Results as tables: read from a ledger, a study or W&B, with statistics, figures and text.

Reading:
    frame, from_ledger, wandb_project            the tables of a study's folder, of a ledger, of a project of W&B
    stored_checkpoint, cell_rows                 settings and summary of a checkpoint; a row of each
    study_declaration                            what a study declared before its first cell
    columns, required_columns                    which columns make a setting; what a study's folder must have
    trained_cell                                 one cell with its model: `pe_lab.load`
Computing:
    pooling, learned                             the mean over settings; whether any model has learned the task
    swept_rates, tuned_outcomes                  rates by validation; outcomes of seeds that tune for themselves
    study_comparisons, sensitivity               all comparisons of a study; in which settings a difference holds
    measurement_tables                           curves over length and over layers
Showing:
    summary_table, study                         tables as text; the files of a study
    plots, panels, styles                        figures; what they share; the colour and marker of each encoding
    specification, verdict_marks                 the figure of a sensitivity; how verdicts are drawn
    number_text                                  numbers and their ranges as texts
    sync                                         runs of W&B, made again from a ledger
"""
