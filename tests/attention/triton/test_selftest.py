"""The cases of the self-test launch every kernel, in both precisions."""

import pytest
import torch

from benchmarks.ahead import KERNELS
from pe_lab.attention import selftest, triton
from pe_lab.attention.selftest import DTYPES, selftest_cases

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kernel_is_launched(dtype: torch.dtype, launches: list) -> None:
    for case in selftest_cases(9):
        if case.dtype == dtype:
            selftest._Inputs(case).results(triton, CPU, dtype)
    assert {launch.kernel for launch in launches} == set(KERNELS)
    switches = ("BIAS", "SEGMENTED", "CAUSAL", "WINDOW")
    switched = {(name, launch.arguments.get(name)) for launch in launches for name in switches}
    assert switched >= {(name, value) for name in switches for value in (0, 1)}
    rotations = [launch.arguments for launch in launches if launch.kernel.startswith("rotate")]
    assert {(given["table_batch"] > 0, given["table_rows"] > 1) for given in rotations} >= {
        (False, False), (False, True), (True, False), (True, True),
    }  # fmt: skip
