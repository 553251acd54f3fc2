"""The benchmark: every encoding on tasks that tell encodings apart, its results, and the score card of another one."""
