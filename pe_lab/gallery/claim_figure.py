"""How far a part of a claim is on the claimed side of its bound, as SVG; losses and shares have an axis each."""

import numpy as np
from markupsafe import Markup

from pe_lab.gallery.claim_tests import claimed_side
from pe_lab.gallery.claim_text import UNITS_OF_CLAIMS
from pe_lab.replication.entry import Claimed
from pe_lab.replication.findings import Finding
from pe_lab.replication.universe import quantity
from pe_lab.statistics import Agreement

NATS, SHARES = "nats", "share or ratio"
TICKS = {-1.0: "−1", -0.1: "−0.1", 0.0: "0", 0.1: "0.1", 1.0: "1"}
LINEAR = 0.03  # about the distance from its bound up to which an axis is linear; beyond, it is logarithmic
MIDDLE, REACH = 75, 71  # of an axis, in pixels


def unit(finding: Finding, label: str) -> str:
    """Return the unit of the axis on which a part is drawn: NATS or SHARES."""
    test = finding.entry.values[label]
    assert isinstance(test, Claimed)
    words = UNITS_OF_CLAIMS.get(str(test.value["metric"]), quantity(test))
    return NATS if "nats" in words and not test.ratio else SHARES


def place(distance: float) -> float:
    """Return where an axis has a distance from the bound: -1 at -1.5 and below, 0 at 0, 1 at 1.5 and above."""
    return float(np.clip(np.arcsinh(distance / LINEAR) / np.arcsinh(1.5 / LINEAR), -1, 1))


def strip(finding: Finding, label: str) -> Markup:
    """Return the mean and the interval of a part; the mean is filled where it is decided."""
    low, mean, high = (MIDDLE + REACH * place(distance) for distance in claimed_side(finding, label))
    agreement = finding.compared[label].agreement
    svg = (
        '<svg class="gallery-strip gallery-verdict" data-verdict="{}" viewBox="0 -6 {} 12" width="{}" height="12"'
        ' aria-hidden="true"><path d="M{} 0H{}M{} -6V6" class="grid"/><path d="M{:.1f} 0H{:.1f}"'
        ' stroke="currentColor" stroke-width="2"/><circle cx="{:.1f}" r="3.5" stroke="currentColor" stroke-width="2"'
        ' fill="{}"/></svg>'
    )
    fill = "var(--md-default-bg-color, Canvas)" if agreement == Agreement.UNDECIDED else "currentColor"
    axis_of = (2 * MIDDLE, 2 * MIDDLE, MIDDLE - REACH, MIDDLE + REACH, MIDDLE)
    return Markup(svg).format(agreement, *axis_of, low, high, mean, fill)


def axis() -> Markup:
    """Return the axis of either unit with its ticks."""
    places = {MIDDLE + REACH * place(tick): text for tick, text in TICKS.items()}
    lines = "".join(f"M{x:.1f} -3V3" for x in places)
    texts = Markup().join(
        Markup('<text x="{:.1f}" y="-5" text-anchor="middle">{}</text>').format(x, text) for x, text in places.items()
    )
    svg = (
        '<svg class="gallery-strip" viewBox="0 -14 {} 20" width="{}" height="20" role="img"'
        ' aria-label="distance to what is claimed, right of 0 as claimed"><path d="M{} 0H{}{}" class="grid"/>{}</svg>'
    )
    return Markup(svg).format(2 * MIDDLE, 2 * MIDDLE, MIDDLE - REACH, MIDDLE + REACH, lines, texts)
