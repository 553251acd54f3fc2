"""The compiled kernels executed without a GPU: their PTX on numpy, for values, gradients, and the order of accesses.

See tests/emulation. Bounds and alignment of every access are checked, races between warps and between programs, waits
and fences; planted faults show that each is found. Slow tests run the whole table, as `python -m emulation.table` does.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from emulation import cases, faults, table
from emulation.cases import Case
from emulation.machine import Code, Machine
from emulation.memory import Global, Hazards
from emulation.ptx import members, parse, split
from emulation.worker import worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels themselves: test_gpu.py"),
]
CASES = [  # as few compilations as show both architectures, both dtypes, and softmax, rotation and sticks
    *(Case("bias", length=length) for length in (1, 65, 150)),
    *(Case("rotation", length=length) for length in (2, 33)),  # at two tokens, gradients cancel
    Case("rotation of sequences", batch=2, heads=3, length=33),
    *(Case("window", length=length) for length in (2, 150)),
    *(Case("stick", length=length, head_dim=16) for length in (2, 100)),
    replace(faults.SINGLE, length=70),
]


@pytest.fixture(scope="module")
def call() -> Callable[..., Any]:
    """Calls a function in a process whose kernels are compiled."""
    return worker()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_are_those_of_the_reference_without_a_hazard(case: Case, call: Callable[..., Any]) -> None:
    outcome = call(cases.check, case)
    assert not outcome.wrong
    assert outcome.launches >= 4
    assert outcome.steps > 1000


@pytest.mark.exhaustive  # an hour on one core: most of it is Triton's compiler
@pytest.mark.parametrize("dtype", table.DTYPES, ids=str)
@pytest.mark.parametrize("family", cases.FAMILIES)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_table_has_no_error_beyond_its_bound_and_no_hazard(
    architecture: str, family: str, dtype: torch.dtype, call: Callable[..., Any]
) -> None:
    line, wrong = call(table.row, architecture, family, dtype)
    print(line)
    assert not wrong


@pytest.mark.parametrize("name", [*faults.FAULTS, *faults.REWRITTEN])
def test_a_planted_fault_is_found(name: str, call: Callable[..., Any]) -> None:
    expected, wrong = call(faults.reported, name)
    assert any(expected in text for text in wrong), wrong


@pytest.mark.parametrize("case", [faults.HOPPER, faults.AMPERE, faults.SINGLE], ids=str)
def test_the_kernels_with_planted_faults_are_right_without_them(case: Case, call: Callable[..., Any]) -> None:
    assert not call(cases.check, case, backward=False).wrong


# -- reading and executing single instructions -------------------------------------------------------------------------

PTX = """
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0
)
.reqntid 64
{
	.reg .pred 	%p<4>;
	.reg .b16 	%rs<4>;
	.reg .b32 	%r<8>;
	.reg .b64 	%rd<4>;
	.loc	1 7 0                          // some.py:7:0
	ld.param.b64 	%rd1, [kernel_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	BODY
	st.global.b32 [ %rd3 + 0 ], { %r2 };
	ret;
}
"""


def result(body: str, hazards: Hazards | None = None) -> np.ndarray:
    """What 64 threads store in %r2, whose number is in %r1, after some instructions."""
    actual = torch.zeros(64, dtype=torch.int32)
    hazards = Hazards() if hazards is None else hazards
    memory = Global([actual], hazards)
    code = Code(parse(PTX.replace("BODY", body)))
    with np.errstate(all="ignore"):
        Machine(code, {"kernel_param_0": memory.address(actual)}, (1, 1, 1), np.arange(1), 256, memory, hazards).run()
    memory.finish()
    return actual.numpy()


THREAD = np.arange(64)
HALF = THREAD < 32


def as_bits(numbers: np.ndarray) -> np.ndarray:
    """The bits of float32 numbers."""
    return numbers.astype("f4").view("i4")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("add.s32 %r2, %r1, -3;", THREAD - 3),
        ("mul.hi.u32 %r2, %r1, 0x80000000;", THREAD // 2),
        ("sub.s32 %r3, %r1, 9; shr.s32 %r2, %r3, 1;", (THREAD - 9) >> 1),
        ("shl.b32 %r2, %r1, 40;", 0 * THREAD),
        ("bfe.u32 %r2, %r1, 2, 3;", THREAD >> 2 & 7),
        ("sub.s32 %r3, %r1, 9; div.s32 %r2, %r3, 4;", np.trunc((THREAD - 9) / 4)),
        ("sub.s32 %r3, %r1, 9; rem.s32 %r2, %r3, 4;", np.fmod(THREAD - 9, 4)),
        ("setp.lt.s32 %p1, %r1, 5; selp.b32 %r2, 7, %r1, %p1;", np.where(THREAD < 5, 7, THREAD)),
        ("mov.b32 %r2, 1; setp.gt.u32 %p1, %r1, 9; @%p1 mov.b32 %r2, 2;", 1 + (THREAD > 9)),
        ("mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r2, {%rs2, %rs1};", THREAD << 16),
        ("prmt.b32 %r2, %r1, 5, 0x4440;", THREAD + 0x05050500),
        ("shf.l.wrap.b32 %r2, 0, %r1, 4;", THREAD << 4),
        ("shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;", THREAD ^ 1),
        ("shfl.sync.idx.b32 %r2, %r1, 3, 31, -1;", THREAD // 32 * 32 + 3),
        ("redux.sync.max.s32 %r2, %r1, -1;", THREAD // 32 * 32 + 31),
        (
            "setp.lt.s32 %p1, %r1, 34; vote.sync.ballot.b32 %r3, %p1, -1; popc.b32 %r2, %r3;",
            np.where(THREAD < 32, 32, 2),
        ),
        (
            "cvt.rn.f32.s32 %r3, %r1; ex2.approx.ftz.f32 %r4, %r3; lg2.approx.f32 %r2, %r4;",
            THREAD.astype("f4").view("i4"),
        ),
        ("cvt.rn.f32.s32 %r3, %r1; fma.rn.f32 %r2, %r3, %r3, 0f3F800000;", (THREAD**2.0 + 1).astype("f4").view("i4")),
        ("mov.b32 %r3, 0f3F808000; cvt.rn.bf16.f32 %rs1, %r3; cvt.u32.u16 %r2, %rs1;", 0 * THREAD + 0x3F80),
        ("mov.b32 %r3, 0f3F818000; cvt.rn.bf16.f32 %rs1, %r3; cvt.u32.u16 %r2, %rs1;", 0 * THREAD + 0x3F82),
        ("mov.b32 %r3, 0f7FC00000; max.f32 %r2, %r3, 0f40000000;", 0 * THREAD + 0x40000000),
        ("mov.b32 %r3, 0f7FC00000; setp.neu.f32 %p1, %r3, %r3; selp.b32 %r2, 1, 0, %p1;", 0 * THREAD + 1),
    ],
)
def test_an_instruction_computes_what_the_manual_says(body: str, expected: np.ndarray) -> None:
    assert np.array_equal(result(body), expected.astype("i4"))


def test_threads_that_diverge_meet_again() -> None:
    """Each counts to its number, and all pass the barrier after."""
    hazards = Hazards()
    loop = "mov.b32 %r2, 0;\n$L_1:\n add.s32 %r2, %r2, 2; setp.lt.s32 %p1, %r2, %r1; @%p1 bra $L_1;\n bar.sync 0;"
    assert np.array_equal(result(loop, hazards), np.maximum(2, (THREAD + 1) // 2 * 2))
    assert not hazards


SHARED = "mov.b32 %r3, global_smem; shl.b32 %r4, %r1, 2; add.s32 %r3, %r3, %r4; "


@pytest.mark.parametrize(
    ("body", "hazard"),
    [
        ("st.shared.b32 [ %r3 + 0 ], %r1; bar.sync 0; ld.shared.b32 %r2, [ %r3 + 0 ];", None),
        ("st.shared.b32 [ %r3 + 0 ], %r1; ld.shared.b32 %r2, [ %r3 + 0 ];", None),
        (
            "st.shared.b32 [ %r3 + 0 ], %r1; bar.sync 0; xor.b32 %r3, %r3, 128; ld.shared.b32 %r2, [ %r3 + 0 ];",
            None,
        ),
        (
            "st.shared.b32 [ %r3 + 0 ], %r1; xor.b32 %r3, %r3, 128; ld.shared.b32 %r2, [ %r3 + 0 ];",
            "shared read after another warp's write without a barrier",
        ),
        (
            "st.shared.b32 [ %r3 + 0 ], %r1; bar.sync 0; xor.b32 %r5, %r3, 128; ld.shared.b32 %r2, [ %r5 + 0 ]; "
            "st.shared.b32 [ %r3 + 0 ], 1;",
            "shared write after another warp's read without a barrier",
        ),
        ("mov.b32 %r2, 0; st.shared.b32 [ %r3 + 2 ], %r1;", "shared access misaligned"),
        ("mov.b32 %r2, 0; st.shared.b32 [ %r3 + 4 ], %r1;", "shared access out of bounds"),
        ("ld.shared.b32 %r2, [ %r3 + 0 ];", "shared read of what was not written"),
        ("mov.b32 %r2, %r6;", "register read before it is written"),
        ("mov.b32 %r2, 0; setp.lt.s32 %p1, %r1, 3; @%p1 bar.sync 0;", "some threads of a program do not arrive"),
        ("mov.b32 %r2, 0; mov.b32 %r3, global_smem; st.shared.b32 [ %r3 + 0 ], %r1;", "two threads store"),
        ("ld.global.b32 %r2, [ %rd3 + 4 ];", "global read out of bounds"),
        ("ld.global.b32 %r2, [ %rd3 + 1 ];", "global read misaligned"),
    ],
)
def test_an_access_that_may_go_wrong_is_found(body: str, hazard: str | None) -> None:
    hazards = Hazards()
    result(SHARED + body, hazards)
    assert any(text.startswith(str(hazard)) for text, _ in hazards) == bool(hazards) == (hazard is not None)
    assert {line for _, line in hazards} <= {"some.py:7"}


@pytest.mark.parametrize(
    "text", ["atom.global.add.f32 %r2, [%rd3], %r1;", "bar.sync 1, 32;", "sin.approx.f32 %r2, %r1;"]
)
def test_what_is_not_emulated_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(NotImplementedError, match=text.split()[0]):
        result("mov.b32 %r2, 0; " + text)


def test_operands_are_split_outside_of_brackets() -> None:
    assert split("{%r1, %r2}, [ %rd1 + 0 ], 0x10, %r3") == ["{%r1, %r2}", " [ %rd1 + 0 ]", " 0x10", " %r3"]
    assert members("{ %r1, %r2 }") == ("%r1", "%r2")
