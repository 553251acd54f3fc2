"""The table of encodings in a plain model is made by a program, is complete, and has no differences but roundings."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import export, speed
from benchmarks.plain import PlainModel, plain_model
from pe_lab.encodings.named import encodings

TABLE = Path(__file__).parents[2] / "sweeps/results/export.csv"
NAMES = sorted(encodings())
# outputs of size 1 in float32, some 100 roundings of 1e-7 each; against float64, an angle of 2,048 differs by 1e-4
MAX_DIFFERENCE = {
    "plain": 1e-4,
    "cached": 1e-12,
    "llama": 1e-4,
    "gpt2": 1e-4,
    "bert": 1e-4,
    "compile": 1e-5,
    "export": 1e-5,
    "onnx": 1e-5,
}


def without_onnx(column: str) -> None:
    """Skip where a column needs packages that are not installed."""
    if column == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package, reason=f"the column onnx needs {package}")


def small(column: str, name: str) -> None:
    sound(name, column, export.cell(name, column))


RANDOM = "ONNX has no random permutation, from which positions are drawn"


def reason(name: str, column: str) -> str | None:
    """Why a column does not apply to an encoding, at its beginning; None: it applies."""
    kind = getattr(encodings()[name], "func", encodings()[name])
    if column == "onnx" and name.startswith("randomized"):
        return RANDOM
    if column == "onnx" and name == "path":
        return "ONNX solves no triangular equations"
    if column == "cached":
        return kind.whole_sequence
    if column in ("llama", "gpt2", "bert") and kind.reads_marks:
        return f"{name} needs marks of tokens"
    if column in ("llama", "gpt2", "bert") and kind.on_grid:
        return f"{name} needs positions on a grid"
    if column == "bert" and kind.causal_only:
        return f"{name} is defined for causal attention only"
    return None


def sound(name: str, column: str, found: str) -> None:
    """A difference that is small enough, or the reason why there is none."""
    expected = reason(name, column)
    if expected is not None:
        assert found.startswith(expected)
    else:
        assert float(found) < MAX_DIFFERENCE[column], (name, column, found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "column"),  # every two of a column and a kind of encoding that it treats alike
    [
        *(("rope", column) for column in ("plain", "cached", "llama", "bert", "export")),
        *(("alibi", column) for column in ("plain", "cached", "llama")),
        *(("randomized_rope", column) for column in ("plain", "cached", "bert", "export")),
        *(("abacus", column) for column in ("plain", "cached", "llama")),
        ("coupled", "export"),
    ],
)
def test_a_cell_is_the_largest_difference(name: str, column: str) -> None:
    small(column, name)


@pytest.mark.parametrize("name", [pytest.param("t5", marks=pytest.mark.slow), "rope"])
def test_a_cell_of_onnx_is_run_by_onnxruntime(name: str) -> None:
    """t5 adds a trained mask to the logits, for which PyTorch runs another kernel when gradients are computed."""
    without_onnx("onnx")
    small("onnx", name)


def test_what_does_not_apply_has_a_reason() -> None:
    assert export.cell("randomized_rope", "onnx") == RANDOM


@pytest.mark.exhaustive
@pytest.mark.parametrize("column", list(export.COLUMNS))
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_of_the_table(name: str, column: str) -> None:
    without_onnx(column)
    small(column, name)


def test_the_table_is_complete_and_has_no_difference_but_roundings() -> None:
    rows = export.read_table(TABLE)
    assert sorted(rows) == NAMES
    for name, row in rows.items():
        assert list(row) == list(export.COLUMNS)
        for column, found in row.items():
            sound(name, column, found)


def test_cells_are_written_among_those_that_the_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "export.csv"
    made: list[str] = []

    def column(model: PlainModel) -> float:
        made.append(model.stack.first.name)
        if model.stack.first.name == "alibi":
            raise export.NotApplicableError("a reason, with a comma")
        if model.stack.first.name == "t5":
            raise RuntimeError("two\nlines")
        return 0.000123

    monkeypatch.setattr(export, "COLUMNS", {"one": column, "two": column})
    export.write_table(["rope", "alibi"], [], path)
    export.write_table(["rope", "t5"], ["two"], path)
    assert made == ["rope", "rope", "alibi", "alibi", "rope", "t5"]
    assert path.read_text().splitlines() == [
        "encoding,one,two",
        'alibi,"a reason, with a comma","a reason, with a comma"',
        "rope,1.2e-04,1.2e-04",
        "t5,,failed: RuntimeError: two",
    ]
    assert len(capsys.readouterr().out.splitlines()) == 6
    with pytest.raises(ValueError, match="did you mean rope"):
        export.write_table(["roep"], [], path)
    with pytest.raises(ValueError, match="must be one of one, two, got .three."):
        export.write_table([], ["three"], path)


def test_a_difference_is_found_in_outputs_and_in_gradients() -> None:
    model = plain_model("rope")
    assert export.at_lengths(model, lambda x: model(x) + 0.25 * (x.shape[1] == 12)) == pytest.approx(0.25)
    for length in export.LENGTHS:  # a NaN anywhere is not lost among numbers
        nan = export.at_lengths(model, lambda x, length=length: model(x) * (torch.nan if x.shape[1] == length else 1))
        assert nan != nan
    with pytest.raises(AssertionError, match="shapes differ"):
        export.difference(torch.zeros(2), torch.zeros(3))


def test_parameters_of_an_encoding_have_an_effect() -> None:
    """Those that start at zero are moved: what a program leaves out would not be seen."""
    for name in ("cope", "learnable"):
        model, x = plain_model(name), export.token_embeddings(8)
        before = model(x)
        with torch.no_grad():
            for parameter in model.stack.parameters():
                parameter.zero_()
        assert (model(x) - before).abs().max() > 1e-3


# -- speed -------------------------------------------------------------------------------------------------------------

TINY = speed.ModelSizes(width=16, num_heads=2, length=8, keys=5, pairs=2, depths=(2,), batches=(1,))


def test_speed_is_measured_for_every_setting(capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("transformers", reason="speed compares with transformers")
    speed.print_speed(TINY)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "ratio"
    assert len(lines) == 8 + 4
    assert [line.split(",")[1].strip() for line in lines[8:]] == ["rope", "alibi", "rope", "alibi"]


def test_both_sides_of_a_ratio_run_equally_often_in_turn() -> None:
    calls: list[str] = []
    ratio = speed.compare(lambda: calls.append("a"), lambda: calls.append("b"), 4)
    assert calls[2 * speed.WARM_UP :] == list("baabbaab")
    assert calls.count("a") == calls.count("b") == 4 + speed.WARM_UP
    assert len(ratio.milliseconds) == 2
    with pytest.raises(ValueError, match="--pairs must be at least 2, got 1"):
        speed.compare(lambda: None, lambda: None, 1)


def test_a_ratio_is_of_the_first_to_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(speed.time, "process_time", lambda: now[0])

    def taking(seconds: float):
        def call() -> None:
            now[0] += seconds

        return call

    ratio = speed.compare(taking(0.003), taking(0.002), 5)
    assert ratio.median == pytest.approx(1.5)
    assert ratio.milliseconds == pytest.approx((3, 2))


def test_the_rotary_of_transformers_computes_the_same_and_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="speed compares with transformers")
    speed.training(TINY, 1, "half", mlp=True)
    true = speed.RotaryModel.forward

    def other(self: speed.RotaryModel, x: Tensor) -> Tensor:
        return true(self, x) + 0.01

    monkeypatch.setattr(speed.RotaryModel, "forward", other)
    with pytest.raises(ValueError, match="rope with pairing=half must equal transformers' rotary"):
        speed.training(TINY, 1, "half", mlp=True)
