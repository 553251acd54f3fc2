"""Probes: measurements of a trained model's hidden states and attention, as tidy rows. Each is a file of conf/probe."""

from pe_lab.probes.base import Probe, ProbeRow, make_row

__all__ = ["Probe", "ProbeRow", "make_row"]
