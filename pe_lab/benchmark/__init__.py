"""pe-bench 2: every encoding on tasks that tell encodings apart, tuned by each seed for itself; rows and verdicts."""
