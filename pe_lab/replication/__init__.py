"""Published numbers repeated in their own setting: the registry in conf/replication, and a verdict on each entry."""

from pe_lab.replication.entries import Entry, Reported, load
from pe_lab.replication.verdicts import Finding, Verdict, judge

__all__ = ["Entry", "Finding", "Reported", "Verdict", "judge", "load"]
