"""pe-bench 2: every seed of an encoding tunes for itself. Its tasks, its rows, and what they say."""
