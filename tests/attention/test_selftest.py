"""The self-test finds wrong kernels, its verdict is kept, and auto on a GPU asks for it."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_lab.attention import __main__ as program_module
from pe_lab.attention import choose, reference, resolve, selftest, selftest_verdict, triton
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.selftest import DTYPES, FAMILIES, SelftestCase, SelftestRow, compare_case, selftest_cases
from pe_lab.attention.selftest_verdict import SelftestResult
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms

CPU = torch.device("cpu")
SHORT = 40
GOOD = SelftestRow("bias, float32, both, head_dim 64", "bias", "float32", "output", 1e-6, 2e-5)


# the cases


def test_the_cases_cover_families_precisions_and_head_dimensions() -> None:
    actual = selftest_cases()
    assert {(case.family, case.dtype) for case in actual} == {(name, dtype) for name in FAMILIES for dtype in DTYPES}
    for family in FAMILIES:
        assert {case.causal for case in actual if case.family == family} == {True, False}
    for dtype in DTYPES:
        assert {case.head_dim for case in actual if case.dtype == dtype} >= {16, 32, 64, 128}
    assert min(case.length for case in actual) >= 2 * 128 + 1  # an uncut tile of 128 on the diagonal and one beside it


class Planted:
    """The reference in the place of the kernels, with a fault."""

    def __init__(self, fault: Callable[[Tensor], Tensor] = lambda out: out) -> None:
        self.fault = fault

    def attend(self, q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None) -> Tensor:
        q = q.clone()
        assert triton.refusal_reason(q, terms, layout, dropout) is None
        return self.fault(reference.attend(q, k, v, terms, layout, dropout))


@pytest.mark.parametrize("case", selftest_cases(SHORT), ids=lambda case: case.name)
def test_every_case_is_one_of_the_kernels_and_the_reference_passes_it(
    case: SelftestCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "triton", Planted())
    row = compare_case(case, CPU)
    assert row.passed
    assert 0 < row.error < row.bound <= selftest.INTERPRETER_FACTOR * (4e-5 if case.dtype == torch.float32 else 0.05)


def one_number(out: Tensor) -> Tensor:
    at = torch.zeros_like(out)
    at[1, 1, 7, 3] = 0.2
    return out + at


def gradient_of_one_row(out: Tensor) -> Tensor:
    kept = torch.ones_like(out)
    kept[0, 1, 20] = 0
    return out * kept + (out * (1 - kept)).detach()


FAULTS = {
    "one number": one_number,
    "nan": lambda out: torch.where(torch.arange(out.shape[-1]) == 3, torch.nan, out),
    "the gradient of one row": gradient_of_one_row,
    "all gradients a little": lambda out: out + 0.02 * (out - out.detach()),
    "cut to bfloat16's bits": lambda out: (
        (out.float().view(torch.int32) & ~0xFFFF).view(torch.float32).to(out.dtype) + (out - out.detach())
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if (fault, dtype) == ("cut to bfloat16's bits", torch.bfloat16):
        pytest.skip("bfloat16 has no more bits")
    case = SelftestCase("bias", dtype, 16, True, SHORT)
    monkeypatch.setattr(selftest, "triton", Planted(FAULTS[fault]))
    assert not compare_case(case, CPU).passed


@pytest.mark.parametrize(
    "case",
    [
        SelftestCase("gate and bias", torch.float32, 16, True, SHORT),
        SelftestCase("rotation", torch.bfloat16, 16, False, SHORT),
        SelftestCase("stick documents", torch.float32, 16, True, 33),
    ],
    ids=lambda case: case.name,
)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter, beyond the sequence
def test_the_kernels_pass_in_the_interpreter(case: SelftestCase) -> None:
    assert compare_case(case, CPU).passed


@pytest.mark.gpu
@pytest.mark.parametrize("case", selftest_cases(), ids=lambda case: case.name)
def test_the_kernels_pass_on_a_gpu(case: SelftestCase) -> None:
    row = compare_case(case, torch.device("cuda"))
    assert row.passed, row


# the verdict


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A GPU that is not there. Its self-test ends with `verdict`, and `ran` counts how often it ran."""
    made = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", uuid="GPU-1", verdict=SelftestResult(None, {}, [asdict(GOOD)]), ran=0
    )

    def run(device: torch.device) -> SelftestResult:
        made.ran += 1
        return made.verdict

    (driver := tmp_path / "driver").write_text("570.86\n")
    monkeypatch.setattr(selftest_verdict, "DRIVER_FILE", driver)
    monkeypatch.setattr(selftest_verdict, "run_selftest", run)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: made)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(triton, "triton_version", lambda: "3.7.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    selftest_verdict._selftest_result.cache_clear()
    yield made
    selftest_verdict._selftest_result.cache_clear()


def queries(dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Stands for queries on it."""
    return SimpleNamespace(
        device=torch.device("cuda"), dtype=dtype, shape=torch.Size((2, 2, 9, 64)), requires_grad=True
    )


LAYOUT = Layout.of_lengths(torch.tensor([9, 7]), 9, causal=True)
ROTARY = Rotary(torch.ones(1, 1, 9, 32), torch.zeros(1, 1, 9, 32))
BIAS = Terms(distance_bias=torch.zeros(1, 17))


def auto(terms: Terms = BIAS, layout: Layout = LAYOUT, dtype: torch.dtype = torch.float32) -> str:
    return resolve("auto", queries(dtype), terms, layout)


def forget() -> None:
    """As in a new process."""
    selftest_verdict._selftest_result.cache_clear()


def test_the_first_auto_runs_the_self_test_and_later_processes_read_its_result(gpu: SimpleNamespace) -> None:
    assert auto() == auto() == "triton"
    assert gpu.ran == 1
    forget()
    assert auto() == "triton"
    assert gpu.ran == 1


def test_where_it_failed_auto_takes_others_and_one_line_says_so(
    gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.verdict = SelftestResult("the output errs by 3.0e-02 where 2.0e-05 is allowed (bias)")
    with caplog.at_level(logging.WARNING, "pe_lab.attention"):
        assert auto() == auto(Terms()) == "sdpa"
        assert auto(Terms(logit_factors=torch.ones(1, 17))) == "flex"
        assert (
            auto(Terms(logit_factors=torch.ones(1, 17, requires_grad=True))) == "reference"
        )  # flex sums in no fixed order
        assert auto(Terms(normalizer=Stick())) == "reference"
    own = [record for record in caplog.records if not record.name.startswith("wandb")]  # of other tests
    assert [record.getMessage() for record in own] == [
        "Triton's kernels are not used on NVIDIA H100 80GB HBM3: the output errs by 3.0e-02 where 2.0e-05 is allowed "
        "(bias) (again: python -m pe_lab.attention selftest)"
    ]
    forget()
    assert auto() == "sdpa"
    assert gpu.ran == 1
    assert resolve("triton", queries(), BIAS, LAYOUT) == "triton"  # what is named runs


def test_where_no_verdict_can_be_kept_each_process_makes_its_own(
    gpu: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (auto(), auto(), gpu.ran) == ("triton", "triton", 1)
    (record,) = caplog.records
    assert record.getMessage().startswith("the verdict on Triton's kernels cannot be kept, ")
    forget()
    assert (auto(), gpu.ran) == ("triton", 2)


def test_the_choice_has_its_reason(gpu: SimpleNamespace) -> None:
    assert choose("auto", queries(), BIAS, LAYOUT).reason == "attention=auto"
    gpu.verdict = SelftestResult("it was not done in time")
    gpu.uuid = "GPU-2"
    assert choose("auto", queries(), BIAS, LAYOUT).reason == "attention=auto; not triton: it was not done in time"
    learned = Terms(distance_bias=torch.zeros(1, 17, requires_grad=True))
    assert choose("flex", queries(), learned, LAYOUT).reason == (
        "attention=flex; gradients of distance_bias are summed in no fixed order"
    )
    assert choose("flex", queries(), BIAS, LAYOUT).reason == "attention=flex"
    on_a_cpu = choose("auto", torch.zeros(2, 2, 9, 64), BIAS, LAYOUT)
    assert (on_a_cpu.name, on_a_cpu.reason[:27]) == ("sdpa", "attention=auto; not triton:")


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, SimpleNamespace], Any]] = {
    "device": lambda patch, gpu: setattr(gpu, "name", "NVIDIA H200"),
    "uuid": lambda patch, gpu: setattr(gpu, "uuid", "GPU-2"),
    "driver": lambda patch, gpu: selftest_verdict.DRIVER_FILE.write_text("580.65"),
    "torch": lambda patch, gpu: patch.setattr(torch, "__version__", "2.12.0"),
    "cuda": lambda patch, gpu: patch.setattr(torch.version, "cuda", "13.9"),
    "triton": lambda patch, gpu: patch.setattr(triton, "triton_version", lambda: "3.7.2"),
    "ptxas": lambda patch, gpu: patch.setenv("TRITON_PTXAS_PATH", "/usr/bin/ptxas"),
    "revision": lambda patch, gpu: patch.setattr(triton, "revision", 99),
    "kernels": lambda patch, gpu: patch.setattr(selftest_verdict, "_digest", lambda: "0" * 16),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_asks_anew_and_its_reverse_does_not(
    change: str, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(CHANGES) == sorted(selftest_verdict.verdict_identity(CPU))
    assert auto() == "triton"
    gpu.verdict = SelftestResult("it failed")
    with monkeypatch.context() as patch:
        before = (gpu.name, gpu.uuid, selftest_verdict.DRIVER_FILE.read_text())
        CHANGES[change](patch, gpu)
        assert (auto(), gpu.ran) == ("sdpa", 2)
        gpu.name, gpu.uuid = before[:2]
        selftest_verdict.DRIVER_FILE.write_text(before[2])
    forget()
    assert (auto(), gpu.ran) == ("triton", 2)


def test_the_digest_is_of_source_and_launch_parameters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("blocks.json", "1"), ("blocks.json", "2")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(triton, "__file__", str(tmp_path / "__init__.py"))
        selftest_verdict._digest.cache_clear()
        results.add(selftest_verdict._digest())
    selftest_verdict._digest.cache_clear()
    assert len(results) == 4


DAMAGED = {
    "empty": "",
    "cut": lambda content: json.dumps(content)[:40],
    "no JSON": "nothing",
    "a list": "[]",
    "null": "null",
    "no verdict": lambda content: json.dumps({"made_with": content["made_with"]}),
    "another GPU's": lambda content: json.dumps(content | {"made_with": content["made_with"] | {"uuid": "GPU-2"}}),
    "no reason": lambda content: json.dumps(content | {"verdict": content["verdict"] | {"failed": 3}}),
    "passed without a case": lambda content: json.dumps(content | {"verdict": content["verdict"] | {"rows": []}}),
    "no times": lambda content: json.dumps(content | {"verdict": content["verdict"] | {"milliseconds": {"x": {}}}}),
    "words for times": lambda content: json.dumps(
        content | {"verdict": content["verdict"] | {"milliseconds": {"x": {"triton": "1", "sdpa": "2"}}}}
    ),
    "an unknown entry": lambda content: json.dumps(content | {"verdict": content["verdict"] | {"more": 1}}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_asks_anew(damage: str, gpu: SimpleNamespace) -> None:
    assert auto() == "triton"
    path = selftest_verdict.verdict_path(selftest_verdict.verdict_identity(CPU))
    assert path.name.startswith("nvidia-h100-80gb-hbm3-")
    change = DAMAGED[damage]
    path.write_text(change if isinstance(change, str) else change(json.loads(path.read_text())))
    forget()
    gpu.verdict = SelftestResult("it failed")
    assert (auto(), gpu.ran) == ("sdpa", 2)
    assert [entry.name for entry in path.parent.iterdir() if entry.suffix != ".lock"] == [path.name]


def test_for_nothing_or_a_rotation_auto_takes_what_is_measured_faster(gpu: SimpleNamespace) -> None:
    times = {
        "nothing causal float32": {"triton": 1.0, "sdpa": 2.0},
        "rotation causal float32": {"triton": 2.0, "sdpa": 1.0},
        "nothing causal bfloat16": {"triton": 1.0, "sdpa": 1.01},  # a tie
        "nothing both float32": {"triton": 2.0, "sdpa": 1.0},
    }
    gpu.verdict = replace(gpu.verdict, milliseconds=times)
    rotated = Terms(rotary_q=ROTARY, rotary_k=ROTARY)
    assert auto(Terms()) == "triton"
    assert auto(rotated) == "sdpa"
    assert choose("auto", queries(), rotated, LAYOUT).reason == (
        "attention=auto; not triton: sdpa was measured faster for rotation causal float32"
    )
    assert auto(Terms(), dtype=torch.bfloat16) == "sdpa"
    assert auto(Terms(), replace(LAYOUT, causal=False)) == "sdpa"
    assert auto(rotated, dtype=torch.bfloat16) == "triton"  # not measured
    assert auto(replace(rotated, distance_bias=BIAS.distance_bias)) == "triton"  # more than a rotation
    assert auto(Terms(normalizer=Stick())) == "triton"
    assert auto(replace(rotated, window=(4, None))) == "triton"  # which skips tiles
    assert auto(replace(rotated, window=(4, None)), replace(LAYOUT, pos=2 * LAYOUT.pos)) == "sdpa"
    dropped = Dropout(0.1, torch.tensor(0))
    assert resolve("auto", queries(), rotated, LAYOUT, dropped) == "triton"  # sdpa drops none


def test_what_the_kernels_refuse_asks_for_no_self_test(gpu: SimpleNamespace) -> None:
    assert auto(Terms(relative_values=torch.zeros(1, 17, 64))) == "reference"
    assert auto(dtype=torch.float64) == "sdpa"
    assert gpu.ran == 0


def test_versions_of_triton_that_were_not_examined_are_refused(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PE_LAB_TRITON_ANY", raising=False)
    for other in ("3.6.0", "3.8.0", "3.70.0"):
        monkeypatch.setattr(triton, "triton_version", lambda other=other: other)
        assert auto() == "sdpa"
        with pytest.raises(ValueError, match=f"examined with triton 3.7.x, got {other}: .* PE_LAB_TRITON_ANY=1; use"):
            resolve("triton", queries(), BIAS, LAYOUT)
    assert gpu.ran == 0
    monkeypatch.setenv("PE_LAB_TRITON_ANY", "1")
    assert (auto(), gpu.ran) == ("triton", 1)


def test_the_installed_version_is_one_that_was_examined() -> None:
    assert triton.triton_version().startswith(triton.EXAMINED_VERSION)


# the processes


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Replaces Python by a shell script in the processes that the self-test starts; $FILE is what they write to."""

    def replaced(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\nSHARE="$5"; FILE="$6"; DEVICE="$8"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    return replaced


GPU = torch.device("cuda")
BEGIN, PASSED = json.dumps({"begin": GOOD.case}), json.dumps({"row": asdict(GOOD)})
TIMES = {"nothing causal float32": {"triton": 1.5, "sdpa": 2.5}}


def test_the_rows_of_all_processes_and_the_times_make_the_verdict(child: Callable[[str], None]) -> None:
    times = json.dumps({"milliseconds": TIMES})
    child(f"""[ "$DEVICE" = cuda:1 ] && [ -z "$TRITON_INTERPRET" ] || exit 9
        if [ "$SHARE" = race ]; then echo '{times}'; else echo '{BEGIN}'; echo '{PASSED}'; fi > "$FILE" """)
    assert selftest_verdict.run_selftest(GPU, processes=3) == SelftestResult(None, TIMES, [asdict(GOOD)] * 3)


@pytest.mark.parametrize("error", [3e-5, float("nan"), float("inf")])
def test_one_case_over_its_bound_fails(error: float, child: Callable[[str], None]) -> None:
    bad = json.dumps({"row": asdict(replace(GOOD, case="gate", error=error))})
    child(f"""echo '{PASSED}' > "$FILE"; [ "$SHARE" != 1/2 ] || echo '{bad}' >> "$FILE" """)
    actual = selftest_verdict.run_selftest(GPU, processes=2)
    assert actual.failed == f"the output errs by {error:.1e} where 2.0e-05 is allowed (gate)"
    assert len(actual.rows) == 3


def test_a_fault_of_the_device_ends_its_process_only(child: Callable[[str], None]) -> None:
    child(f"""echo '{BEGIN}' > "$FILE"; echo 'CUDA error: an illegal memory access' >&2; kill -ABRT $$""")
    assert selftest_verdict.run_selftest(GPU, processes=1).failed == (
        f"it ended with status -6 in the case {GOOD.case}: CUDA error: an illegal memory access"
    )


def test_a_process_that_hangs_is_ended(child: Callable[[str], None]) -> None:
    child(f"""echo '{BEGIN}' > "$FILE"; exec sleep 600""")
    assert selftest_verdict.run_selftest(GPU, processes=1, seconds=0.5).failed.startswith("it was not done in time")


def test_no_timings_are_a_failure_too(child: Callable[[str], None]) -> None:
    child(f"""[ "$SHARE" = race ] && exit 3; echo '{PASSED}' > "$FILE" """)
    assert selftest_verdict.run_selftest(GPU, processes=1).failed.startswith("it ended with status 3")


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_a_process_notes_a_case_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [SelftestCase("softmax", torch.float32, 16, True, 9), SelftestCase("stick", torch.float32, 16, True, 9)]
    monkeypatch.setattr(selftest, "selftest_cases", lambda length: [*few, few[0]])
    program_module.run_share("1/2", tmp_path / "rows", "cpu")
    begun, row = map(json.loads, (tmp_path / "rows").read_text().splitlines())
    assert begun == {"begin": few[1].name}
    assert row["row"]["case"] == few[1].name
    assert SelftestRow(**row["row"]).passed


# the program


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_is_missing(program: Callable[..., tuple[int, list[str], str]]) -> None:
    status, lines, errors = program(program_module.main, "selftest")
    assert (status, lines) == (1, [])
    assert errors == "error: selftest needs a CUDA device, got none; --interpreter runs it on a CPU\n"


@pytest.mark.parametrize("failed", [None, "the output errs by 3.0e-05 where 2.0e-05 is allowed (gate)"])
def test_the_program_prints_the_table(
    failed: str | None, program: Callable[..., tuple[int, list[str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = replace(GOOD, family="gate", error=3e-5 if failed else 0.0)
    rows = [asdict(row) for row in (GOOD, replace(GOOD, error=1e-5), bad)]
    monkeypatch.setattr(selftest_verdict, "run_selftest", lambda device, seconds: SelftestResult(failed, TIMES, rows))
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # what the program sets is undone
    status, lines, errors = program(program_module.main, "selftest", "--interpreter")
    assert lines[0].split() == ["family", "dtype", "cases", "largest", "error", "bound", "pass"]
    assert lines[1].split() == ["bias", "float32", "2", "1.0e-05", "2.0e-05", "yes"]
    assert lines[2].split()[-1] == ("NO" if failed else "yes")
    assert lines[3].split() == [
        "nothing",
        "causal",
        "float32",
        "triton",
        "1.500",
        "ms",
        "sdpa",
        "2.500",
        "ms",
        "triton",
    ]
    assert (status, errors) == ((1, f"error: {failed}\n") if failed else (0, ""))


@pytest.mark.exhaustive
def test_the_program_passes_in_the_interpreter() -> None:
    """Takes tens of minutes."""
    command = [sys.executable, "-m", "pe_lab.attention", "selftest", "--interpreter"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1 + len(FAMILIES) * len(DTYPES)
