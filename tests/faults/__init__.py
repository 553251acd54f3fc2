"""Faults injected into real processes; used by the tests and by `python -m benchmarks faults`."""
