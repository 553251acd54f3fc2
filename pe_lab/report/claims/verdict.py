"""The verdict on each claim, printed and written as a report."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pe_lab.report.claims.definitions import CLAIMS
from pe_lab.report.claims.parts import FAILS, HOLDS, MARGIN, decide
from pe_lab.report.claims.studies import MissingError, Studies
from pe_lab.report.page import html
from pe_lab.report.parts import Section, Table
from pe_lab.system.files import write_text
from pe_lab.system.spreadsheet import to_csv

METHOD = (
    "A claim is a set of parts. Each part is tested over seeds by a t test with the variance of its own values, not "
    "shared with other encodings: of a mean, or of a difference paired by seed, against 0, a claimed figure or a "
    f"margin of {MARGIN}, which was declared before. That a mean is near a figure, or close to another mean, is tested "
    "by two one-sided tests against that margin. All tests of a claim are one family, corrected by Holm: a part holds "
    "or is contradicted if its corrected p is below 0.05, and is open otherwise. A claim is supported if every part "
    "holds, refuted if one is contradicted, undecided otherwise, and not testable at this budget if what it needs was "
    "not trained, or has only one seed. Brackets are 95 % t intervals "
    "of single means, without correction: one that does not contain 0 can belong to an open part. Values without a p "
    "were computed exactly, or are given for comparison."
)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim and the measurements behind it."""

    number: int
    claim: str
    measured: str
    verdict: str


def verdicts(studies: Studies) -> list[Verdict]:
    """Return the verdicts on all claims, in order."""
    found = []
    for number, claim in enumerate(CLAIMS, 1):
        try:
            states, lines = decide(claim.measure(studies))
        except MissingError as missing:
            found.append(Verdict(number, claim.statement, str(missing), "not testable at this budget"))
            continue
        if FAILS in states:
            verdict = "refuted"
        elif set(states) == {HOLDS}:
            verdict = "supported"
        else:
            verdict = "undecided"
        found.append(Verdict(number, claim.statement, "; ".join(lines) + ".", verdict))
    return found


def report(ledger: Path, out: Path | None) -> None:
    """Print the claims with their measurements, and write them as claims.html and claims.csv.

    Args:
        ledger: a ledger, or a folder of studies.
        out: folder of the files; None: that of the studies.

    Raises:
        ValueError: there is no folder of studies.
    """
    studies = Studies(ledger)
    found = verdicts(studies)
    table = pd.DataFrame([vars(verdict) for verdict in found])[["number", "claim", "verdict", "measured"]]
    used = ", ".join(dict.fromkeys(studies.used))
    sections = [Section("The ten claims", [METHOD, f"Studies: {used or 'none'}.", Table(table, "Verdicts")])]
    folder = out or studies.folder
    write_text(folder / "claims.html", html("pe_lab: the ten claims", sections))
    write_text(folder / "claims.csv", to_csv(table))
    for verdict in found:
        print(f"{verdict.number:2}  {verdict.verdict.upper()}: {verdict.claim}\n    {verdict.measured}\n")
    print(f"{folder / 'claims.html'}, {folder / 'claims.csv'}")
