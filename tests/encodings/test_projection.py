"""Linear maps of activations in the precision of an encoding."""

import pytest
import torch
from torch.testing import assert_close

from pe_lab.encodings.projection import project


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_projection_is_computed_in_the_dtype_of_its_input_with_a_bias_or_without(has_bias: bool) -> None:
    layer, x = torch.nn.Linear(3, 2, bias=has_bias), torch.randn(4, 3, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        actual = project(x, layer.weight, layer.bias)
    assert_close(actual, layer.double()(x), rtol=0, atol=1e-14)
