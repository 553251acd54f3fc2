"""The kernels as PyTorch knows them: their shapes and derivatives hold for the compiler too."""

import pytest
import torch
from torch import Tensor

from pe_lab.attention.triton.operators import softmax_attention, softmax_attention_backward
from pe_lab.attention.triton.rotation import _backward as rotate_backward
from pe_lab.attention.triton.rotation import rotate

pytestmark = [  # of the interpreter, in rows of a tile that are beyond the sequence, and of what a mask makes zero
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, H, T, d = 1, 2, 9, 12


ALONE = ("test_schema", "test_faketensor")  # what there is to check of an operator without derivatives


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE)


def heads_last(*shape: int) -> Tensor:
    """As a projection gives them: [B, H, ...] of memory [B, ..., H]."""
    B, H, *rest = shape
    return rand(B, *rest, H).movedim(-1, 1)


def seed() -> Tensor:
    return torch.tensor(3, device=DEVICE)


def window() -> Tensor:
    return torch.tensor([3, 2**30], dtype=torch.int32, device=DEVICE)


def segment() -> Tensor:
    return torch.tensor([[0] * 4 + [1] * 3 + [-1] * 2], device=DEVICE)


# bias, gate, decay, segment, seed, window, scale, causal, p
TERMS = {
    "nothing": lambda: (None, None, None, None, None, None, 0.3, True, 0.0),
    "bias": lambda: (rand(H, 2 * T - 1), None, None, None, None, None, 0.3, False, 0.0),
    "gate_and_bias": lambda: (rand(1, 2 * T + 1), rand(1, 5), None, segment(), None, None, 0.3, True, 0.0),
    "decay_and_dropout": lambda: (None, None, rand(B, H, T), None, seed(), None, 0.3, True, 0.2),
    "several": lambda: (rand(H, 2 * T - 1), rand(H, 5), rand(B, H, T), segment(), seed(), window(), 0.3, False, 0.2),
    "window": lambda: (None, None, None, None, None, window(), 0.3, True, 0.0),
    "strided": lambda: (rand(7, H).T, rand(7, H).T, heads_last(B, H, T), None, None, None, 0.3, True, 0.0),
}


def leaves(given: tuple) -> tuple:
    """The same, with floating-point tensors as leaves that want a gradient."""
    return tuple(x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given)


def queries_keys_values(strided: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    return rand(B, T, 3, H, d).permute(2, 0, 3, 1, 4).unbind() if strided else rand(3, B, H, T, d).unbind()


SLOW = ("bias", "decay_and_dropout", "gate_and_bias", "nothing", "strided", "window")  # "several" has their terms


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in TERMS]
)
def test_softmax_attention_is_a_sound_operator(case: str) -> None:
    inputs = (*queries_keys_values(case == "strided"), *TERMS[case]())
    torch.library.opcheck(softmax_attention, leaves(inputs))


@pytest.mark.parametrize("case", TERMS)
def test_its_backward_pass_is_a_sound_operator(case: str) -> None:
    inputs = (*queries_keys_values(case == "strided"), *TERMS[case]())
    out, lse = softmax_attention(*inputs)
    wants = [inputs[3] is not None, inputs[4] is not None]
    torch.library.opcheck(softmax_attention_backward, (rand(B, H, T, d), out, lse, wants, *inputs), test_utils=ALONE)


# of the tables, and of the gain
ROTATIONS = {
    "one_table": lambda: (rand(1, 1, T, d // 2), rand(1, 1, T, d // 2), None, False),
    "per_head_with_gain": lambda: (rand(1, H, T, d // 2), rand(1, H, T, d // 2), rand(H, d), True),
    "one_gain": lambda: (rand(B, 1, T, d // 2), rand(B, 1, T, d // 2), rand(1, d), False),
    "strided": lambda: (heads_last(B, H, T, d // 2), heads_last(B, H, T, d // 2), rand(d, H).T, True),
}


@pytest.mark.parametrize("case", ROTATIONS)
def test_rotation_is_a_sound_operator(case: str) -> None:
    inputs = (heads_last(B, H, T, d) if case == "strided" else rand(B, H, T, d), *ROTATIONS[case]())
    torch.library.opcheck(rotate, leaves(inputs))


@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("case", ROTATIONS)
def test_the_backward_pass_of_rotation_is_a_sound_operator(case: str, tables: bool) -> None:
    inputs = (heads_last(B, H, T, d) if case == "strided" else rand(B, H, T, d), *ROTATIONS[case]())
    torch.library.opcheck(rotate_backward, (rand(B, H, T, d), *inputs, tables), test_utils=ALONE)


def attention(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, gain: Tensor, *terms: object) -> Tensor:
    q, k = (rotate(x, cos, sin, gain, True) for x in (q, k))
    out, _ = softmax_attention(q, k, v.tanh(), *terms)
    return out.cos()


@pytest.mark.parametrize("case", ["nothing", "several", "strided"])
def test_compiled_in_one_graph_it_gives_the_bits_of_eager(case: str) -> None:
    """Values and gradients; the graph is run by eager kernels, so that nothing else is fused."""
    torch.compiler.reset()
    tables = rand(1, H, T, d // 2), rand(1, H, T, d // 2), rand(H, d)
    inputs = leaves((*queries_keys_values(case == "strided"), *tables, *TERMS[case]()))
    differentiable = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    upstream = rand(B, H, T, d)
    results = []
    for function in (torch.compile(attention, fullgraph=True, backend="aot_eager"), attention):
        out = function(*inputs)
        results.append([out, *torch.autograd.grad(out, differentiable, upstream)])
    for compiled, eager in zip(*results, strict=True):
        assert eager.isfinite().all()
        assert torch.equal(compiled, eager)
