"""Run what a GPU would run on a machine without one: Triton's driver, its compiled code, PyTorch's synchronisations."""
