"""Audit encodings: measure each, draw its picture, time it; write the table."""

import shutil
from pathlib import Path

import torch
from hydra.utils import instantiate
from joblib import Parallel, cpu_count, delayed
from omegaconf import DictConfig
from tqdm import tqdm

from pe_lab import config
from pe_lab.audit import audit_table
from pe_lab.audit.audited_encoding import AuditedEncoding
from pe_lab.audit.cost import measure_costs
from pe_lab.audit.measures import measure_properties
from pe_lab.audit.pictures import save_picture
from pe_lab.system.paths import safe_path
from pe_lab.system.termination import no_exit


def audit_encodings(cfgs: list[DictConfig], out: Path, draw: bool, seconds: float) -> None:
    """Measure encodings, draw their pictures, write and print the table.

    Args:
        cfgs: the config of each encoding.
        out: the folder to write to.
        draw: whether to draw pictures.
        seconds: the time limit for timing one encoding, in seconds.
    """
    none = config.expand_overrides(["pe=none"], multirun=False)[0]
    pictures = {cfg.pe.name: f"pictures/{cfg.pe.name}.png" for cfg in cfgs if draw}
    jobs = [delayed(measure_encoding)(cfg, none, out / pictures[cfg.pe.name] if pictures else None) for cfg in cfgs]
    workers = max(1, min(cpu_count(), len(jobs) // 8))  # starting a process takes as long as measuring some encodings
    with safe_path():
        described = tqdm(Parallel(workers, return_as="generator")(jobs), "properties", len(jobs))
        rows, reasons = map(list, zip(*described, strict=True))
    torch.set_num_threads(1)  # costs are timed last, in this process, when the other cores are free
    for cfg, row, why_not in zip(tqdm(cfgs, "cost"), rows, reasons, strict=True):
        subject, without = (AuditedEncoding(each.pe.name, instantiate(each.pe)) for each in (cfg, none))
        for columns, more in zip((row, why_not), measure_costs(subject, without, seconds), strict=True):
            columns.update(more)
    table = audit_table.tabulate_rows([cfg.pe.name for cfg in cfgs], rows)
    empty = audit_table.empty_cells(dict(zip(table.index, reasons, strict=True)))
    audit_table.write_report(out, table, empty, list(pictures.values()))
    print(audit_table.render_audit(table, shutil.get_terminal_size().columns))
    print("", audit_table.PREAMBLE, *(f"  {name}: {text}" for name, text in audit_table.legend().items()), sep="\n")
    print("", "Empty cells", *(f"  {line}" for line in empty), sep="\n")
    print(f"\n{out / 'table.csv'}, {out / 'table.md'}, {len(pictures)} pictures")


def measure_encoding(
    cfg: DictConfig, none: DictConfig, picture: Path | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Return an encoding's measures and the reasons for those that are missing; draw its picture to a file."""
    torch.set_num_threads(1)  # the number of threads changes rounding; processes use the other cores
    with no_exit():
        subject = AuditedEncoding(cfg.pe.name, instantiate(cfg.pe))
        if picture:
            save_picture(subject, AuditedEncoding("none", instantiate(none.pe)), picture)
        return measure_properties(subject)
