"""pe-bench 2: every encoding on tasks that distinguish encodings, with a learning rate tuned for each seed.

tasks, undefined_encodings          the tasks, as studies of conf/; which encodings are not defined for which
pack, task_rows                     rows of a ledger; what a row of the package has
task_statistics, task_results       verdicts on pairs; one table and one ranking of a task
task_tables                         all tables as text and CSV
twins, fresh_seeds                  the placebo; the replication with other seeds
"""
