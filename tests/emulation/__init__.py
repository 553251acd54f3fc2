"""Run what a GPU would run on a machine without one: Triton's driver, its compiled code, PyTorch's synchronisations.

The self-test of pe_lab/attention/selftest_verdict.py compares the numbers of the kernels with the reference, on one
device. It does not see a read beyond a tensor that meets mapped memory, a race that the timing of this device hides, a
wait or a fence that is missing, or an architecture that is not there. The emulator executes the code compiled for sm_80
and for sm_90 and checks bounds, alignment and order of every access; faults.py plants such faults, and each must be
found. The stand-in for the driver shows launches that a device would refuse, and PyTorch's hidden synchronisations.

To be deleted when continuous integration has GPUs of these architectures, and runs the self-test there under all tools
of compute-sanitizer. `python -m benchmarks gpu` runs one of them, memcheck, by hand.
"""
