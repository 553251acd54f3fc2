"""Published numbers and claims, each repeated in its own setting: the registry in conf/replication, and verdicts.

entries, entry, fields                       files of the registry; one entry; checks of what a file says
values, ledger_values                        values of our seeds; those of a ledger
study_values, benchmark_rows                 those of claims on tables of studies; on shipped rows
findings, claim_tests                        the verdict on an entry; the tests of a claim
universe                                     a claim in all settings of its universe
"""

from pe_lab.replication.entries import load_entries
from pe_lab.replication.entry import Claimed, Entry, Reported
from pe_lab.replication.findings import EntryVerdict, Finding, judge_entry

__all__ = ["Claimed", "Entry", "EntryVerdict", "Finding", "Reported", "judge_entry", "load_entries"]
