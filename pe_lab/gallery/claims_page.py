"""The page of the claims of the literature with their verdicts."""

from collections import Counter

from pe_lab.gallery import claim_figure, claim_tests, claim_text
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import Page, PageSection, rendered
from pe_lab.gallery.shared_values import shared_values
from pe_lab.replication.entry import benchmark_commands
from pe_lab.replication.findings import PARTS
from pe_lab.statistics import Agreement

SIGNS = {Agreement.REPRODUCED: "✓", Agreement.NOT_REPRODUCED: "✗", Agreement.UNDECIDED: "?"}  # of parts of a claim


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
    encodings = {name: sorted(claim_tests.encodings_of(claim.entry)) for name, claim in claims.items()}
    choices = {
        "encoding": sorted({pe for name in groups[0] for pe in encodings[name]}),
        "paper": sorted({claim_text.paper_in_words(claim.entry.paper) for claim in groups[0].values()}),
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
        encodings=encodings,
        choices=choices,
        edged={name for name, parts in content.edges.items() if parts},
        facets={facet: facet for facet in choices},
        exact={name: claim_tests.exact_parts(claim) for name, claim in claims.items()},
        sizes=_sizes(content),
        judged=judged,
        published={name: each for name, each in judged.items() if each.entry.paper != claim_text.UNPUBLISHED},
        unpublished={name: each for name, each in judged.items() if each.entry.paper == claim_text.UNPUBLISHED},
        conditions=claim_text.conditions(content.numbers),
        listed=sum(each.entry.paper != claim_text.UNPUBLISHED for each in content.numbers.values()),
        listed_unpublished=sum(each.entry.paper == claim_text.UNPUBLISHED for each in content.numbers.values()),
        shared=by_table,
        notes=notes,
        differs={name: notes[name][0] for name in notes if says[claims[name].entry.says] > 1 and notes[name]},
        commands={name: benchmark_commands(claim.entry) for name, claim in claims.items() if claim.entry.tasks},
        levels={name: claim_text.levels(claim.entry, content.results) for name, claim in claims.items()},
        words=PARTS,
        signs=SIGNS,
        figure=claim_figure,
        tests=claim_tests,
        text=claim_text,
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
