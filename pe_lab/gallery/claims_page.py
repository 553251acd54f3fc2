"""The page of the claims of the literature with their verdicts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from pe_lab.gallery import claim_figure, claim_tests, claim_text
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import Page, PageSection, rendered
from pe_lab.gallery.shared_values import shared_values
from pe_lab.replication.entry import Claimed, benchmark_commands
from pe_lab.replication.findings import PARTS, Finding
from pe_lab.statistics import Agreement

SIGNS = {Agreement.REPRODUCED: "✓", Agreement.NOT_REPRODUCED: "✗", Agreement.UNDECIDED: "?"}  # of parts of a claim


@dataclass(frozen=True)
class ShownPart:
    """What the page shows of a part of a claim.

    Attributes:
        agreement: the verdict on the part.
        mean, interval, claimed: in words; see `mean_and_interval` and `bound`.
        is_exact: whether the value is the same in every seed.
        no_room: why no difference can show; empty: one can.
        unit, strip: the unit of the axis on which the part is drawn, and the drawing.
    """

    label: str
    agreement: str
    mean: str
    interval: str
    claimed: str
    is_exact: bool
    no_room: str
    unit: str
    strip: Markup


@dataclass(frozen=True)
class ShownClaim:
    """What the page shows of a claim beside its entry; all but the paper is empty if nothing was compared.

    Attributes:
        paper: the paper in words.
        scope: the tasks that its parts are measured on.
        states: how many parts are shown, contradicted and open.
        as_claimed: the labels of the parts that are as claimed.
        parts: by label.
        weakest: the part that supports the claim least; None: nothing is compared.
        tables: of the parts.
    """

    paper: str
    scope: list[str]
    states: str
    as_claimed: list[str]
    parts: dict[str, ShownPart]
    weakest: ShownPart | None
    tables: list[claim_text.PartsTable]

    @classmethod
    def of(cls, claim: Finding, roomless: Mapping[str, str]) -> "ShownClaim":
        """Make what is shown of a claim.

        Args:
            roomless: the parts of `without_room`.
        """
        paper = claim_text.paper_in_words(claim.entry.paper)
        if not claim.compared:
            return cls(paper, [], "", [], {}, None, [])
        parts = _shown_parts(claim, roomless)
        weakest = claim_tests.weakest(claim, roomless)
        return cls(
            paper,
            claim_tests.scope(claim),
            claim_text.states(claim, roomless),
            claim_tests.shown(claim),
            parts,
            None if weakest is None else parts[weakest],
            claim_text.parts_tables(claim),
        )


def _shown_parts(claim: Finding, roomless: Mapping[str, str]) -> dict[str, ShownPart]:
    exact, parts = claim_tests.exact_parts(claim), {}
    for label, comparison in claim.compared.items():
        test = claim.entry.values[label]
        assert isinstance(test, Claimed)
        mean, interval = claim_text.mean_and_interval(test, comparison)
        parts[label] = ShownPart(
            label,
            str(comparison.agreement),
            mean,
            interval,
            claim_text.bound(claim.entry, test),
            label in exact,
            roomless.get(label, ""),
            claim_figure.unit(claim, label),
            claim_figure.strip(claim, label),
        )
    return parts


def claims_page(content: GalleryData) -> Page:
    """Return the claims of the literature with their verdicts."""
    judged = {name: finding for name, finding in content.numbers.items() if finding.compared}
    supported = claim_tests.by_support(content.claims)
    overviews, groups = [], []
    for papers in (True, False):
        of_papers = {
            name: claim for name, claim in supported.items() if (claim.entry.paper != claim_text.UNPUBLISHED) == papers
        }
        overviews.append(claim_tests.by_verdict(of_papers, content.roomless))
        groups.append({name: of_papers[name] for names in overviews[-1].values() for name in names})
    claims = groups[0] | groups[1]
    verdicts = {name: word for overview in overviews for word, names in overview.items() for name in names}
    shown = {name: ShownClaim.of(claim, content.roomless[name]) for name, claim in claims.items()}
    encodings = {name: sorted(claim_tests.encodings_of(claim.entry)) for name, claim in claims.items()}
    choices = {
        "encoding": sorted({pe for name in groups[0] for pe in encodings[name]}),
        "paper": sorted({shown[name].paper for name in groups[0]}),
        "verdict": list(overviews[0]),
    }
    says = Counter(claim.entry.says for claim in claims.values())
    by_table = {
        bool(rows): claim_text.shared_notes(claim.entry for claim in claims.values() if bool(claim.entry.tasks) == rows)
        for rows in (True, False)
    }
    notes = {name: claim.entry.chosen[len(by_table[bool(claim.entry.tasks)]) :] for name, claim in claims.items()}
    html = rendered(
        "claims.html",
        **shared_values(content, ""),
        groups=groups,
        overviews=overviews,
        verdicts=verdicts,
        shown=shown,
        encodings=encodings,
        choices=choices,
        edged={name for name, parts in content.edges.items() if parts},
        facets={facet: facet for facet in choices},
        sizes=_sizes(content),
        judged=judged,
        published={name: each for name, each in judged.items() if each.entry.paper != claim_text.UNPUBLISHED},
        unpublished={name: each for name, each in judged.items() if each.entry.paper == claim_text.UNPUBLISHED},
        conditions=content.conditions,
        listed=sum(each.entry.paper != claim_text.UNPUBLISHED for each in content.numbers.values()),
        listed_unpublished=sum(each.entry.paper == claim_text.UNPUBLISHED for each in content.numbers.values()),
        shared=by_table,
        notes=notes,
        differs={name: notes[name][0] for name in notes if says[claims[name].entry.says] > 1 and notes[name]},
        commands={name: benchmark_commands(claim.entry) for name, claim in claims.items() if claim.entry.tasks},
        levels={name: claim_text.levels(claim.entry, content.results) for name, claim in claims.items()},
        words=PARTS,
        signs=SIGNS,
        ours={name: claim_text.ours(each) for name, each in judged.items()},
        units=(claim_figure.NATS, claim_figure.SHARES),
        axis=claim_figure.axis(),
        linear=claim_figure.LINEAR,
        cannot=claim_tests.CANNOT,
    )
    return Page("claims", "Claims and their verdicts", [PageSection("", html)], wide=True)


def _sizes(content: GalleryData) -> list[tuple[list[str], str, list[str]]]:
    """Return the median number of parameters, in millions, and the range of steps of the models of claims, by tasks.

    Tasks of the same numbers stand together.
    """
    named = {task for claim in content.claims.values() for task in claim.entry.tasks}
    groups: dict[tuple[str, tuple[int, int]], list[str]] = {}
    for name, rows in ((name, results.rows) for name, results in content.results.items() if name in named):
        size = f"{rows['parameters'].astype(float).median() / 1e6:.2f}"
        groups.setdefault((size, (int(rows["steps"].min()), int(rows["steps"].max()))), []).append(name)
    return [(names, size, [f"{end:,}" for end in dict.fromkeys(steps)]) for (size, steps), names in groups.items()]
