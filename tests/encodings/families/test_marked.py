"""Vectors for marks of tokens: rows of abacus and of position coupling, their shifts, datasets without marks."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend
from pe_lab.config import expand_overrides
from pe_lab.data.arithmetic import Addition
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings import PADDING, UNMARKED, Abacus, Coupled, Layout, Sizes, Stack, make
from pe_lab.encodings.base import MissingMarksError
from pe_lab.encodings.families.marked import Marked
from pe_lab.experiment.cell import Cell
from pe_lab.training.graph import refusal_reason

D, H, T, SEED = 6, 2, 12, 5
SIZES = Sizes(D, H, T, marks=4)


def abacus(**options: int) -> Abacus:
    return Abacus(SIZES, **{"rows": 40, "max_shift": 30} | options).double()


def coupled(**options: int) -> Coupled:
    return Coupled(SIZES, **{"rows": 20} | options).double()


def layouts(causal: bool, seed: int | None = SEED) -> dict[str, Layout]:
    """START 1 2 + 3 4 SEP 5 6 7 END PAD and others; documents in a row; positions that begin at 100."""
    marks = torch.tensor(
        [
            [-1, 1, 2, 0, 1, 2, 0, 1, 2, 3, -1, -1],
            [-1, 1, 0, 1, 0, 1, 2, -1, -1, -1, -1, -1],
            [-1, 3, 2, 1, 0, 3, 2, 1, 0, 4, 3, 2],
        ]
    )
    plain = Layout.of_lengths(torch.tensor([11, 8, 12]), T, causal)
    segment = torch.tensor([[0] * 7 + [1] * 5, [PADDING] * 2 + [3] * 10, [2] * 12])
    return {
        "padded": replace(plain, marks=marks, seed=seed),
        "documents": Layout(torch.arange(100, 100 + T)[None], segment, causal, seed, marks=marks),
    }


def digits(marks: list[int], k: int) -> list[int]:
    """The rows of abacus, as its released code: places of digits, moved by k, and 0 for other tokens."""
    return [m + k if m > 0 else 0 for m in marks]


def coupling(marks: list[int], s: int) -> list[int]:
    """The rows of position coupling: s + e + 1 for the digit of significance e, s for signs, 0 outside."""
    return [0 if m == -1 else s if m == 0 else s + 1 + (m - 1) for m in marks]


def drawn_by_abacus(layout: Layout, max_shift: int = 30) -> list[int]:
    """One k for the batch."""
    generator = torch.Generator().manual_seed(SEED)
    return [int(torch.randint(max_shift + 1, (1,), generator=generator))] * len(layout.marks)


def drawn_by_coupled(layout: Layout, rows: int = 20) -> list[int]:
    """One s for each sequence, from 1 ... max_position - its largest mark."""
    u = torch.rand(len(layout.marks), dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    return [1 + int(u[b] * (rows - 1 - max(row))) for b, row in enumerate(layout.marks.tolist())]


CASES = {"abacus": (abacus, digits, drawn_by_abacus, 0), "coupled": (coupled, coupling, drawn_by_coupled, 1)}


@pytest.mark.proves("{name}")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["padded", "documents"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_embeddings_and_gradients_are_those_of_the_definition(
    name: str, training: bool, kind: str, causal: bool
) -> None:
    made, rows_of, draw, at_rest = CASES[name]
    encoding, layout = made().train(training), layouts(causal)[kind]
    shifts = draw(layout) if training else [at_rest] * 3
    x = torch.randn(3, T, D, dtype=torch.float64, requires_grad=True)
    got = encoding.embed(x, encoding.locate(layout))
    expected, rows = torch.zeros(3, T, D, dtype=torch.float64), set()
    upstream, gradient = torch.randn(3, T, D, dtype=torch.float64), torch.zeros_like(encoding.table)
    for b, marks in enumerate(layout.marks.tolist()):
        for t, row in enumerate(rows_of(marks, shifts[b])):
            expected[b, t] = x[b, t].detach() + encoding.table[row].detach()
            gradient[row] += upstream[b, t]
            rows.add(row)
    assert len(rows) > 4
    assert_close(got, expected, rtol=0, atol=0)
    of_x, of_table = torch.autograd.grad(got, (x, encoding.table), upstream)
    assert torch.equal(of_x, upstream)
    assert_close(of_table, gradient, rtol=0, atol=1e-13)


def test_digits_of_one_significance_and_signs_share_their_rows() -> None:
    """On the sequences of the dataset: `START 8 5 + 7 6 SEP 5 2 1 END`."""
    batch = Addition(0, longest=2, validation=9, test=9).write(torch.tensor([2]), torch.tensor([[8, 5, 10, 7, 6]]))
    encoding = Coupled(Sizes(D, H, 11, marks=3)).eval()
    assert encoding.index(batch.layout.marks, None).tolist() == [[0, 2, 3, 1, 2, 3, 1, 2, 3, 4, 0]]
    assert Abacus(Sizes(D, H, 11, marks=3)).index(batch.layout.marks, None).tolist() == [
        [0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 0]
    ]


def test_shifts_cover_their_range_evenly() -> None:
    """Of abacus 0 ... max_shift, both included; of coupled 1 ... rows - 1 - the largest mark."""
    encoding = abacus(max_shift=9)
    ks = torch.cat([encoding.draw(2, seed=seed) for seed in range(2000)])
    assert torch.equal(ks[::2], ks[1::2])  # of all sequences of a batch
    counts = ks[::2].bincount(minlength=10)
    assert len(counts) == 10
    assert (counts - 200).abs().max() < 5 * (200 * 0.9) ** 0.5
    encoding, marks = coupled(rows=15), torch.tensor([[4, -1]]).expand(20_000, 2)
    rows = encoding.index(marks, encoding.draw(20_000, seed=3))
    assert not rows[:, 1].any()
    counts = (rows[:, 0] - 4).bincount()
    assert counts[0] == 0
    assert len(counts) == 11
    assert (counts[1:] - 2000).abs().max() < 5 * (2000 * 0.9) ** 0.5


@pytest.mark.parametrize("name", CASES)
def test_shifts_follow_from_the_seed_and_leave_the_global_generator(name: str) -> None:
    encoding, x = CASES[name][0](), torch.zeros(3, T, D, dtype=torch.float64)
    before = torch.get_rng_state()
    first, again, other = (encoding.embed(x, layouts(True, seed)["padded"]) for seed in (SEED, SEED, 9))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    seen = [encoding.eval().embed(x, layouts(True, seed)["padded"]) for seed in (SEED, 9, None)]
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("make_one", "error"),
    [
        (lambda: abacus(rows=34), "rows must be at least 35 for marks up to 4 and a shift of 30, got 34"),
        (lambda: coupled(rows=5), "rows must be at least 6 for marks up to 4 and a shift of 1, got 5"),
        (lambda: abacus(max_shift=-1), "max_shift must be an integer of at least 0, got -1"),
        (lambda: Abacus(replace(SIZES, marks=None)), "abacus needs marks of tokens, .*, got none: use none"),
        (lambda: make("abacus", width=6, num_heads=2, depth=1, length=8), "abacus needs marks of tokens"),
        (lambda: make("abacus", width=6, num_heads=2, depth=1, length=8, marks=0), "marks must be an integer of at"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make_one, error: str) -> None:
    with pytest.raises(ValueError, match=error) as caught:
        make_one()
    assert "\n" not in str(caught.value)
    assert abacus(rows=35)
    assert coupled(rows=6)


@pytest.mark.parametrize(
    ("encoding", "training", "largest"),
    [(abacus(), False, 39), (abacus(), True, 9), (coupled(), False, 18), (coupled(), True, 18)],
)
def test_marks_beyond_the_table_are_refused(encoding: Marked, training: bool, largest: int) -> None:
    encoding.train(training)
    layout = Layout.whole(1, 2, True)
    x = torch.zeros(1, 2, D, dtype=torch.float64)
    encoding.embed(x, encoding.locate(replace(layout, marks=torch.tensor([[0, largest]]))))
    message = f"{encoding.name} has rows for marks up to {largest}: mark {largest + 1} is beyond its table"
    with pytest.raises(ValueError, match=message):
        encoding.locate(replace(layout, marks=torch.tensor([[largest + 1, UNMARKED]])))
    with pytest.raises(MissingMarksError, match=f"{encoding.name} needs marks of tokens"):
        encoding.locate(layout)


def test_a_cache_in_training_mode_is_refused() -> None:
    stack = make("coupled", width=D, num_heads=H, depth=1, length=T, marks=4)
    layout, x = layouts(True)["documents"], torch.zeros(3, T, D)
    with torch.no_grad(), pytest.raises(ValueError, match=r"coupled draws shifts in training: call eval\(\) before"):
        stack(x, layout, stack.cache())
    with torch.no_grad():
        stack.eval()(x, layout, stack.cache())


def test_steps_that_draw_shifts_are_not_captured() -> None:
    device, adam = torch.device("cuda"), torch.optim.AdamW
    assert "random draws" in refusal_reason(Stack([abacus()], 1), adam, device)
    both = make("sum", width=8, num_heads=2, depth=1, length=T, marks=4, parts=["abacus", "rope"])
    assert "random draws" in refusal_reason(both, adam, device)


def test_a_sum_with_rotations_has_the_vectors_and_the_rotations() -> None:
    """As in the source, which adds abacus to rope."""
    both, rope, alone = (
        make(name, width=8, num_heads=2, depth=1, length=T, **options).double()
        for name, options in (
            ("sum", {"marks": 4, "parts": ["abacus", "rope"]}),
            ("rope", {}),
            ("abacus", {"marks": 4}),
        )
    )
    initialise_parameters(both, seed=3)
    alone.load_state_dict({key.replace("parts.0.", ""): value for key, value in both.state_dict().items()})
    layout, x = layouts(True)["documents"], torch.randn(3, T, 8, dtype=torch.float64)
    q, k, v = torch.randn(3, 3, 2, T, 4, dtype=torch.float64)
    vectors, positions = both(x, layout)
    assert torch.equal(vectors, alone(x, layout)[0])
    assert not torch.equal(vectors, x)
    outs: list[Tensor] = []
    for pass_positions in (positions, rope(x, layout)[1]):
        _, _, terms, layer_layout = pass_positions.layer(0, x)
        outs.append(attend(q, k, v, terms, layer_layout))
    assert torch.equal(*outs)


def cell(tmp_path, *overrides: str) -> Cell:
    return Cell.from_config(
        expand_overrides([f"ledger={tmp_path}", "trainer.device=cpu", *overrides], multirun=False)[0]
    )


@pytest.mark.parametrize("pe", [["pe=abacus"], ["pe=coupled"], ["pe=sum", "pe.parts=[abacus,rope]"]])
def test_a_dataset_without_marks_is_refused_before_training(pe: list[str], tmp_path) -> None:
    with pytest.raises(
        MissingMarksError, match=r"^\w+ needs marks of tokens, as the places of digits in data=addition"
    ) as caught:
        cell(tmp_path, *pe, "data=copy")
    assert "\n" not in str(caught.value)
    assert cell(tmp_path, *pe, "data=addition").encoding_class.__name__ in ("Abacus", "Coupled", "Sum")


def test_a_table_that_is_too_small_is_refused_before_training(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^pe.rows must be at least 104 for marks up to 4 and a shift of 99, got 103"):
        cell(tmp_path, "pe=abacus", "data=addition", "pe.rows=103")
    assert cell(tmp_path, "pe=abacus", "data=addition", "pe.rows=104", "evaluate.lengths=[8]")
    with pytest.raises(ValueError, match="abacus has rows for marks up to 103: mark 106 is beyond its table"):
        cell(tmp_path, "pe=abacus", "data=addition", "pe.rows=104", "evaluate.lengths=[35]")
