"""What the kernels' tests share."""

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


@pytest.fixture
def rounding_to_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts where a GPU rounds."""
    usual = InterpreterBuilder.cast_impl

    def cast(self: InterpreterBuilder, x: TensorHandle, to: tl.dtype) -> TensorHandle:
        if (x.dtype.scalar, to.scalar) != (tl.float32, tl.bfloat16):
            return usual(self, x, to)
        return TensorHandle(torch.from_numpy(x.data).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast)
