"""Ten claims of the literature, each with the measurements that test it and a verdict."""

from pe_lab.report.claims.definitions import CLAIMS
from pe_lab.report.claims.parts import Part, decide
from pe_lab.report.claims.studies import Studies
from pe_lab.report.claims.verdict import report, verdicts

__all__ = ["CLAIMS", "Part", "Studies", "decide", "report", "verdicts"]
