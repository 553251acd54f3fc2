"""Curves are computed for every value of the sliders, and are what the encoding adds."""

from functools import partial

import pytest

from pe_lab.audit.audited_encoding import AuditedEncoding
from pe_lab.audit.measures import scores_by_distance
from pe_lab.gallery.kernels import curves


def test_the_curve_of_alibi_falls_by_the_slope_of_each_head() -> None:
    found = curves(AuditedEncoding.of("alibi"), {})
    assert found["sliders"] == []
    assert found["unit"] == "logit"
    (heads,) = found["curves"].values()
    assert list(found["curves"]) == [""]
    for head, slope in zip(heads, (2**-2, 2**-4, 2**-6, 2**-8), strict=True):
        assert head == pytest.approx([-slope * distance for distance in found["distances"]], rel=1e-3, abs=1e-9)


def test_a_curve_per_combination_with_the_default_among_them() -> None:
    subject = AuditedEncoding.of("rope")
    found = curves(subject, {"theta": (100.0, 10000.0), "pairing": ("interleaved", "half")})
    assert [one["default"] for one in found["sliders"]] == [1, 0]
    assert set(found["curves"]) == {"0,0", "0,1", "1,0", "1,1"}
    distances, scores = scores_by_distance(subject)
    assert found["distances"] == distances.tolist()
    expected = (scores - scores[:, :1]).tolist()
    for head, values in zip(found["curves"]["1,0"], expected, strict=True):
        assert head == pytest.approx(values, rel=1e-3, abs=1e-9)
    other = AuditedEncoding("rope", partial(subject.make.func, theta=100.0))  # type: ignore[attr-defined]
    expected = (scores_by_distance(other)[1] - scores_by_distance(other)[1][:, :1]).tolist()
    assert found["curves"]["0,0"][2] == pytest.approx(expected[2], rel=1e-3, abs=1e-9)
    assert found["curves"]["0,0"] != found["curves"]["1,0"]


def test_stick_breaking_has_weights_which_are_not_shifted() -> None:
    found = curves(AuditedEncoding.of("stick_breaking"), {})
    assert found["unit"] == "weight"
    scores = scores_by_distance(AuditedEncoding.of("stick_breaking"))[1]
    assert found["curves"][""][0] == pytest.approx(scores[0].tolist(), rel=1e-3)


def test_a_value_that_is_refused_has_the_reason_in_place_of_a_curve() -> None:
    found = curves(AuditedEncoding.of("rope"), {"theta": (10000.0, -1.0)})
    assert "theta" in found["curves"]["1"]
    assert isinstance(found["curves"]["0"], list)


def test_values_without_the_default_are_refused() -> None:
    with pytest.raises(ValueError, match=r"values of rope.theta must have the default 10000.0, got \[1.0, 2.0\]"):
        curves(AuditedEncoding.of("rope"), {"theta": (1.0, 2.0)})
