"""Tables are read as they were written."""

import numpy as np
import pandas as pd

from pe_lab.system.exact_csv import read_csv


def test_numbers_are_read_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    written = pd.DataFrame({"near": rng.normal(size=1000), "far": 10.0 ** rng.uniform(-300, 300, 1000)})
    written.to_csv(tmp_path / "table.csv", index=False)
    pd.testing.assert_frame_equal(read_csv(tmp_path / "table.csv"), written, check_exact=True)
