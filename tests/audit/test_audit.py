"""The audit's measures have known values, detect broken encodings, and the command writes them."""

import math
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import hydra
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from helpers.configs import NAMES, pe_settings
from pe_lab.audit import audit_table, cost, measures
from pe_lab.audit.audited_encoding import HEADS, LENGTH, WIDTH, AuditedEncoding, equal_tokens, random_vectors
from pe_lab.audit.cost import Meter, attention_layers, measure_costs
from pe_lab.audit.pictures import draw_picture, effective_distance, save_picture
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.absolute import sinusoid
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Terms

SLOPES = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]  # of alibi with 4 heads
ROUNDING = 1e-10


@cache
def subject(name: str) -> AuditedEncoding:
    return AuditedEncoding(name, hydra.utils.instantiate(pe_settings(name)))


class Leaking(PositionalEncoding):
    """Broken: every token gets the mean of the whole sequence."""

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return x + 0.1 * x.mean(1, keepdim=True)


class Repeating(PositionalEncoding):
    """Broken: sinusoids that start again at position 8 times `octaves`."""

    octaves = 1

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return x + sinusoid(layout.pos % (8 * self.octaves), WIDTH, 1e4, x.dtype)


class RepeatingLate(Repeating):
    octaves = 16


class Overflowing(PositionalEncoding):
    """Broken: sinusoids that are infinite from position 100 on."""

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return x + sinusoid(layout.pos, WIDTH, 1e4, x.dtype) / (layout.pos < 100)[..., None]


class OverflowingValues(Overflowing):
    """Broken: the vectors of distances are infinite where there are 100 of them."""

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return x + sinusoid(layout.pos, WIDTH, 1e4, x.dtype)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        size = (1, 2 * layout.max_distance + 1, self.sizes.head_dim)
        return Terms(relative_values=torch.full(size, torch.inf if layout.max_distance >= 100 else 0, dtype=h.dtype))


class Faint(PositionalEncoding):
    """Broken: positions differ by less than float32 resolves beside a token."""

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return x + 1e-6 * sinusoid(layout.pos, WIDTH, 1e4, x.dtype)


class EndsAt100(PositionalEncoding):
    """Is defined for positions 0 to 99 only."""

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.pos_range[1] >= 100:
            raise ValueError(f"no position {layout.pos_range[1]}")
        return x + sinusoid(layout.pos, WIDTH, 1e4, x.dtype)


class ByHalves(PositionalEncoding):
    """Broken: marks the later half of a sequence of any length."""

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return x + (layout.pos >= layout.pos.shape[1] // 2).to(x.dtype)[..., None] * x


class OnQueriesOnly(PositionalEncoding):
    """Broken: a bias that depends on absolute positions instead of distance."""

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        pos = layout.pos.to(h.dtype)
        return Terms(pair_bias=(pos[:, None, :, None] * pos[:, None, None, :]).sin())


def broken(which: type[PositionalEncoding]) -> AuditedEncoding:
    return AuditedEncoding(which.__name__, which)


@pytest.mark.parametrize("name", NAMES)
def test_no_encoding_leaks_the_future_or_gives_more_than_all_attention(name: str) -> None:
    assert measures.causality_leak(subject(name)) < ROUNDING
    assert measures.row_mass_high(subject(name)) < 1 + ROUNDING


def test_a_leak_is_exposed() -> None:
    assert measures.causality_leak(broken(Leaking)) > 1e-3


def test_uniqueness_is_that_of_the_formula() -> None:
    assert measures.uniqueness(subject("none")) < ROUNDING
    # neighbours differ by m_h in the logits to the tokens up to the first and from those from the second on
    assert measures.uniqueness(subject("alibi")) == pytest.approx(math.sqrt(LENGTH * sum(m**2 for m in SLOPES)))
    # by 1 in every dimension of the token vector; the layer norm takes it away from the attention's input
    assert measures.uniqueness(subject("integer")) == pytest.approx(math.sqrt(WIDTH))


def test_positions_that_repeat_are_exposed() -> None:
    assert measures.uniqueness(broken(Repeating)) < ROUNDING < 1 < measures.uniqueness(broken(RepeatingLate))
    assert measures.reach(broken(Repeating)) == 0
    assert measures.reach(broken(RepeatingLate)) == 8


def test_consistency_is_that_of_the_formula() -> None:
    assert measures.consistency(subject("rope")) < ROUNDING
    last = LENGTH - 1  # all dimensions are pos / (T - 1)
    expected = math.sqrt(WIDTH) * (1 - last / (2 * LENGTH - 1))
    assert measures.consistency(subject("normalized")) == pytest.approx(expected)
    assert measures.consistency(broken(ByHalves)) > 1


def test_without_an_encoding_a_model_is_blind_to_order_unless_it_is_causal() -> None:
    assert measures.order_bidirectional(subject("none")) < ROUNDING
    assert measures.order_causal(subject("none")) > 0.1


def test_the_layer_norm_removes_values_equal_in_all_dimensions() -> None:
    assert measures.order_bidirectional(subject("integer")) < ROUNDING
    assert measures.order_bidirectional(subject("sinusoidal")) > 0.1


def test_order_is_measured_under_a_causal_mask_only_where_it_must_be() -> None:
    cells, reasons = measures.measure_properties(subject("forgetting"))
    assert cells["order_causal"] > 0.1
    assert "order_bidirectional" not in cells
    assert "causal" in reasons["order_bidirectional"]


def test_reach_ends_with_the_table_with_what_is_finite_and_never_for_sinusoids() -> None:
    assert measures.reach(subject("learnable")) * measures.REACH_LENGTH == 512
    assert measures.reach(subject("sinusoidal")) == measures.REACHES[-1]
    assert measures.reach(broken(Overflowing)) == measures.reach(broken(OverflowingValues)) == 4
    assert measures.reach(broken(Faint)) == 0
    assert measures.reach(subject("none")) == 0


def test_size_is_that_of_the_table_against_the_tokens() -> None:
    table = subject("learnable").model().encodings[0].table[:LENGTH]
    x = random_vectors(LENGTH, batch=4)
    expected = (table.norm() / (x.norm() / math.sqrt(len(x)))).item()
    assert measures.size(subject("learnable")) == pytest.approx(expected)
    assert measures.size(subject("rope")) == 0


@pytest.mark.parametrize("name", ["none", "alibi", "rope", "t5", "shaw", "transformer_xl", "rope_2d"])
def test_attention_follows_shifted_content(name: str) -> None:
    assert measures.translation(subject(name)) < ROUNDING


def test_attention_that_stays_behind_is_exposed() -> None:
    assert measures.translation(subject("sinusoidal")) > 0.1
    assert measures.translation(broken(OnQueriesOnly)) > 0.1


def test_a_linear_map_shifts_sinusoids_and_rotations_but_no_table() -> None:
    for name in ("sinusoidal", "sinusoidal_qk", "rope", "xpos"):
        assert measures.linear_shift(subject(name)) < ROUNDING
    # a random target of 448 rows, from 64 random dimensions and a constant
    assert measures.linear_shift(subject("learnable")) == pytest.approx(math.sqrt(1 - 65 / 448), abs=0.03)
    with pytest.raises(ValueError, match="no vector"):
        measures.linear_shift(subject("alibi"))


def test_decay_is_that_of_the_formula() -> None:
    assert measures.distance_decay(subject("alibi")) == -1
    distance, scores = measures.scores_by_distance(subject("alibi"))
    expected = -torch.tensor(SLOPES, dtype=torch.float64)[:, None] * distance
    torch.testing.assert_close(scores - scores[:, :1], expected, rtol=0, atol=ROUNDING)
    _, scores = measures.scores_by_distance(subject("rope"))  # |q|^2 at distance 0, less elsewhere
    assert (scores[:, 1:] < scores[:, :1]).all()
    with pytest.raises(ValueError, match="same at every distance"):
        measures.distance_decay(subject("none"))


def test_rows_of_a_stick_sum_to_less_than_one_and_with_the_remainder_to_one() -> None:
    view = subject("rse").view(random_vectors(LENGTH, batch=4))
    first = (view.q_scored[:, :, 0] * view.k_scored[:, :, 0]).sum(-1) / math.sqrt(WIDTH / HEADS)
    torch.testing.assert_close(view.weights[:, :, 0].sum(-1), first.sigmoid())  # one key, one share
    assert measures.row_mass_low(subject("rse")) < 0.5
    for name in ("rope", "stick_breaking"):
        assert measures.row_mass_low(subject(name)) == pytest.approx(1)


def test_norms_are_kept_by_a_rotation_and_scaled_by_yarn() -> None:
    assert measures.norm_change(subject("rope")) < ROUNDING
    assert measures.norm_change(subject("yarn")) == pytest.approx(0.1 * math.log(4), rel=1e-6)
    assert measures.norm_change(subject("sinusoidal")) > 0.1


def test_parameters_are_counted_once_and_per_layer() -> None:
    counted = {
        name: (measures.parameters(subject(name)), measures.parameters_per_layer(subject(name)))
        for name in ("rope", "learnable", "learnable_per_layer", "lrope")
    }
    table, frequencies = 512 * WIDTH, WIDTH // 2
    assert counted["rope"] == (0, 0)
    assert counted["learnable"] == (table, 0)
    assert counted["learnable_per_layer"] == (table, table)
    assert counted["lrope"] == (frequencies, frequencies)


def test_parameters_that_start_as_zeros_are_measured_with_other_values() -> None:
    """The vectors of CoPE start at zero."""
    assert measures.uniqueness(subject("cope")) > 0.01


def test_random_positions_are_the_same_in_every_look() -> None:
    views = [subject("randomized_rope").view(random_vectors(LENGTH)) for _ in range(2)]
    assert torch.equal(views[0].weights, views[1].weights)
    assert measures.consistency(subject("randomized_rope")) > 0.1


def test_clipping_is_seen_where_it_happens() -> None:
    def seen(name: str) -> Tensor:
        view = subject(name).view(equal_tokens(measures.MANY_POSITIONS), causal=False)
        return effective_distance(view.score[0], causal=False)

    offset = torch.arange(1 - measures.MANY_POSITIONS, measures.MANY_POSITIONS)
    assert torch.equal(seen("relative_bias"), offset.clamp(-128, 128))
    assert torch.equal(seen("shaw"), offset.clamp(-16, 16))
    assert torch.equal(seen("alibi"), offset)
    assert len(seen("t5").unique()) == 31  # of 32 buckets, the one of "0 tokens ahead" is never used
    with pytest.raises(ValueError, match="not a function of distance"):
        seen("sinusoidal")


def test_the_meter_counts_bytes_alive_and_numbers_written() -> None:
    with torch.no_grad(), Meter() as meter:
        x = torch.zeros(1000)  # 4,000 bytes
        y = x + 1  # 8,000
        x.view(10, 100).T.add_(1)  # in place, on a view
        del y
        z = torch.complex(x, x)  # 12,000
        z.mul_(z)
        del x, z
    assert meter.peak == 12_000
    assert meter.alive == 0
    assert (
        meter.elements == 1000 + 1000 + 2000
    )  # of the sums and of the product; to put a complex number together is none


LONG = 1e4  # seconds: no limit


def test_costs_are_ratios_to_none_and_unmeasured_ones_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    none, few = subject("none"), cost.LENGTHS[:3]
    monkeypatch.setattr(cost, "LENGTHS", few)
    cells, reasons = measure_costs(none, none, LONG)
    assert {cells[f"memory_{T}"] for T in few} == {1}
    assert all(0.3 < cells[f"time_{T}"] < 3 for T in few)
    assert cells["extra_flops"] == cells["extra_elements"] == 0
    assert cells.keys().isdisjoint(reasons)
    assert cells.keys() | reasons.keys() == set(audit_table.COST_COLUMNS)


def test_costs_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, reasons = measure_costs(subject("learnable"), subject("none"), seconds=0.02)
    assert cells["extra_elements"] == WIDTH  # one sum per dimension
    assert cells["attention"] == "sdpa"
    assert reasons["time_4096"] == "beyond 0.02 s"
    monkeypatch.setattr(cost, "LENGTHS", cost.LENGTHS[:3])
    cells, _ = measure_costs(subject("shaw"), subject("none"), LONG)
    # q_i . a_ij and weight_ij times a_ij, for 512 keys: a multiplication and an addition per dimension of every head
    assert cells["extra_flops"] == 2 * 2 * cost.FLOPS_LENGTH * WIDTH
    assert cells["attention"] == "reference"
    assert cells["time_128"] > 1.5
    assert cells["memory_128"] > 10


def test_operations_are_those_of_as_many_layers_of_none() -> None:
    cells, _ = measure_costs(AuditedEncoding.of("interleave"), subject("none"), seconds=0)
    assert cells["extra_flops"] == 0


def test_all_layers_count_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer of two adds nothing."""
    monkeypatch.setattr(cost, "LENGTHS", cost.LENGTHS[:1])
    late, early = AuditedEncoding.of("interleave", "pe.parts=[none,shaw]"), subject("shaw")
    assert measures.uniqueness(late) > 0.1
    assert measures.reach(late) == measures.reach(early)
    assert measures.distance_decay(late) != 0
    assert measures.parameters_per_layer(late) == measures.parameters_per_layer(early) / 2
    mixed, whole = (measure_costs(each, subject("none"), LONG)[0] for each in (late, early))
    assert mixed["attention"] == "sdpa, reference"
    assert mixed["extra_elements"] == pytest.approx(whole["extra_elements"] / 2, rel=0.01)
    assert mixed["memory_128"] > 0.5 * whole["memory_128"]
    rotated = AuditedEncoding.of("interleave", "pe.parts=[none,yarn]")
    assert measures.norm_change(rotated) == pytest.approx(0.1 * math.log(4), rel=1e-6)
    assert rotated.view(equal_tokens(LENGTH)).marks() is not None


def test_a_refused_measurement_is_an_empty_cell() -> None:
    cells, reasons = measure_costs(broken(EndsAt100), subject("none"), seconds=1)
    assert cells.keys() == {"attention"}
    assert set(reasons.values()) == {"no position 511"}
    assert measures.reach(broken(EndsAt100)) == 4


def test_tables_are_made_long_enough_to_be_timed() -> None:
    for name in ("learnable", "randomized_learnable"):
        assert attention_layers(subject(name), 1, 2 * 2048, "auto")().shape == (1, 4096, WIDTH)


def test_an_empty_cell_is_empty_and_has_its_reason() -> None:
    table = audit_table.tabulate_rows(["a", "b"], [{"uniqueness": 1e-15, "attention": "sdpa"}, {"uniqueness": 0.5}])
    text = audit_table.markdown_page(
        table, audit_table.empty_cells({"a": {"reach": "too far"}, "b": {"reach": "too far"}}), []
    )
    assert "| a | 0 |  |" in text
    assert "| b | 0.5 |  |" in text
    assert "- reach: too far (a, b)" in text
    assert audit_table.render_audit(table, 1000).splitlines()[2].split() == ["a", "0", "sdpa"]


def test_a_name_and_a_reason_are_shown_as_they_are() -> None:
    text = audit_table.markdown_page(
        audit_table.tabulate_rows(["`<b>``|"], [{}]), audit_table.empty_cells({"`<b>``|": {"reach": "<i>"}}), []
    )
    assert not re.search("<[bi]>", text)
    assert "| \\`&lt;b>\\`\\`\\| |" in text
    assert "- reach: &lt;i> (\\`" in text


@pytest.mark.parametrize(
    "name", ["rope_2d", "cope", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rse", "learnable"))]
)
def test_a_picture_is_drawn(name: str, tmp_path: Path) -> None:
    save_picture(subject(name), subject("none"), tmp_path / "pictures" / f"{name}.png")
    assert (tmp_path / "pictures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_weights_of_sticks_have_plain_numbers_at_their_axis() -> None:
    """Figures on pages are drawn without mathematical text, whose signs would be shown."""
    figure = draw_picture(subject("stick_breaking"), subject("none"), None, panels=[["score"]])
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert any(labels)
    assert not any("$" in label for label in labels)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pe_lab.audit", *words], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_command_writes_table_legend_and_pictures(tmp_path: Path) -> None:
    done = run("pe=rope,none", f"out={tmp_path}", "seconds=0.2")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "table.csv", index_col="pe", keep_default_na=False, na_values=[""])
    assert list(table.index) == ["rope", "none"]
    assert list(table.columns) == audit_table.PROPERTIES + audit_table.COST_COLUMNS
    assert table.loc["rope", "norm_change"] < ROUNDING
    assert table.loc["none", "uniqueness"] < ROUNDING
    assert np.isnan(table.loc["none", "linear_shift"])
    page = (tmp_path / "table.md").read_text()
    for name, text in audit_table.legend().items():
        assert name in done.stdout
        assert f"- `{name}`: {text}" in page
        assert len(text) > 30
    for name in ("rope", "none"):
        assert f"![{name}](pictures/{name}.png)" in page
        assert (tmp_path / "pictures" / f"{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_options_reach_the_encodings_and_pictures_can_be_left_out(tmp_path: Path) -> None:
    done = run("pe=learnable", "pe.max_len=64", f"out={tmp_path}", "seconds=0.1", "pictures=false")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "pictures").exists()
    table = pd.read_csv(tmp_path / "table.csv", index_col="pe")
    assert table.loc["learnable", "parameters"] == 64 * WIDTH
    assert np.isnan(table.loc["learnable", "consistency"])
    assert "learnable has positions 0 to 63" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pe=rope,nope", "error: pe='nope': did you mean "),
        ("pe=rope,", f"error: pe must be one of {', '.join(NAMES[:3])} and {len(NAMES) - 3} others, got ''"),
        ("pe=", "error: the audit takes pe=…, out=…, pictures=…, seconds=… and pe.<option>=…: got 'pe='"),
        ("depth=2", "error: the audit takes pe=…, out=…, pictures=…, seconds=… and pe.<option>=…: got 'depth=2'"),
        ("pe.nothing=1", "nothing"),
        ("seconds=soon", "error: seconds must be a number, got "),
        ("seconds=0", "error: seconds must be positive, got 0.0"),
    ],
)
def test_a_wrong_word_gets_one_line_before_torch_is_loaded(word: str, said: str) -> None:
    code = (
        "import sys; from pe_lab.audit.__main__ import main\n"
        f"sys.argv = ['audit', {word!r}]\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1", "False"]
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
