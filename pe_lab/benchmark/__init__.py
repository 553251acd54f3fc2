"""pe-bench 2: every encoding on tasks that distinguish encodings, with a learning rate tuned for each seed."""
