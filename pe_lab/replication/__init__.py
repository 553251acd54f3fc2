"""Published numbers and claims, each repeated in its own setting: the registry in conf/replication, and verdicts."""

from pe_lab.replication.entries import load_entries
from pe_lab.replication.entry import Claimed, Entry, Reported
from pe_lab.replication.findings import EntryVerdict, Finding, judge_entry

__all__ = ["Claimed", "Entry", "EntryVerdict", "Finding", "Reported", "judge_entry", "load_entries"]
