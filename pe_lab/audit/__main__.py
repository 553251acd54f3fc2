"""Measure properties of encodings without training; write a table and pictures.

python -m pe_lab.audit [pe=rope,alibi] [pe.<option>=<value>] [out=audit] [pictures=true] [seconds=4] [--config-dir DIR]

pe: names in conf/pe (default: all). pe.<option>: an option of each of them, as in pe_lab.run. out: the folder of
table.csv, table.md and pictures/<name>.png. seconds: time limit for timing one encoding.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab import config
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.files import require_writable
from pe_lab.system.names import HELP_COMMAND, did_you_mean, unknown_name_message
from pe_lab.system.termination import no_exit


@dataclass
class Settings:
    """The program's own settings; those of an encoding come as pe.<option>."""

    pe: str | None = None
    out: str = "audit"
    pictures: bool = True
    seconds: float = 4.0


def main() -> None:
    """Read the arguments and run the audit."""
    parser = Parser("pe_lab.audit", list(Settings.__dataclass_fields__), description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> None:
        with config.add_config_dirs(sys.argv[1:]) as arguments:
            settings, cfgs = read_arguments(parser.parse_args(arguments).overrides)
            Path(settings.out).mkdir(parents=True, exist_ok=True)
            run_audit(settings, cfgs)

    run_program(program, (ValueError, OSError, HydraException, OmegaConfBaseException))


def read_arguments(overrides: list[str]) -> tuple[Settings, list[DictConfig]]:
    """Return the settings, and the config of each encoding that they name.

    Raises:
        ValueError: an override that is no setting; a name that does not exist.
        HydraException: an option that an encoding does not have.
    """
    options = [override for override in overrides if override.startswith("pe.")]
    words = [override for override in overrides if override not in options]
    fields = list(Settings.__dataclass_fields__)
    for override in words:
        key, _, value = override.partition("=")
        if key not in fields or not value:
            takes = f"{'=…, '.join(fields)}=… and pe.<option>=…"
            raise ValueError(
                f"the audit takes {takes}: got {override!r}{'' if key in fields else did_you_mean(key, fields)}"
            )
    merged: Any = OmegaConf.merge(OmegaConf.structured(Settings), OmegaConf.from_dotlist(words))
    settings = Settings(**merged)
    if settings.seconds <= 0:
        raise ValueError(f"seconds must be positive, got {settings.seconds}")
    require_writable("out", Path(settings.out))
    names_known = config.find_folders().names("pe")
    names = names_known if settings.pe is None else list(dict.fromkeys(settings.pe.split(",")))
    for name in names:
        if name not in names_known:
            raise ValueError(unknown_name_message("pe", names_known, name, listing=HELP_COMMAND))
    return settings, [config.expand_overrides([f"pe={name}", *options], multirun=False)[0] for name in names]


def run_audit(settings: Settings, cfgs: list[DictConfig]) -> None:
    """Measure the encodings, draw their pictures, write and print the table."""
    import torch
    from hydra.utils import instantiate
    from joblib import Parallel, cpu_count, delayed
    from tqdm import tqdm

    from pe_lab.audit import report
    from pe_lab.audit.audited_encoding import AuditedEncoding
    from pe_lab.audit.cost import measure_costs
    from pe_lab.system.paths import safe_path

    out = Path(settings.out)
    none = config.expand_overrides(["pe=none"], multirun=False)[0]
    pictures = {cfg.pe.name: f"pictures/{cfg.pe.name}.png" for cfg in cfgs if settings.pictures}
    jobs = [delayed(measure_encoding)(cfg, none, out / pictures[cfg.pe.name] if pictures else None) for cfg in cfgs]
    workers = max(1, min(cpu_count(), len(jobs) // 8))  # starting a process takes as long as measuring some encodings
    with safe_path():
        described = tqdm(Parallel(workers, return_as="generator")(jobs), "properties", len(jobs))
        rows, reasons = map(list, zip(*described, strict=True))
    torch.set_num_threads(1)  # costs are timed last, in this process, when the other cores are free
    for cfg, row, why_not in zip(tqdm(cfgs, "cost"), rows, reasons, strict=True):
        subject, without = (AuditedEncoding(each.pe.name, instantiate(each.pe)) for each in (cfg, none))
        for columns, more in zip((row, why_not), measure_costs(subject, without, settings.seconds), strict=True):
            columns.update(more)
    table = report.tabulate_rows([cfg.pe.name for cfg in cfgs], rows)
    empty = report.empty_cells(dict(zip(table.index, reasons, strict=True)))
    report.write_report(out, table, empty, list(pictures.values()))
    print(report.render_table(table, shutil.get_terminal_size().columns))
    print("", report.PREAMBLE, *(f"  {name}: {text}" for name, text in report.legend().items()), sep="\n")
    print("", "Empty cells", *(f"  {line}" for line in empty), sep="\n")
    print(f"\n{out / 'table.csv'}, {out / 'table.md'}, {len(pictures)} pictures")


def measure_encoding(
    cfg: DictConfig, none: DictConfig, picture: Path | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Return an encoding's measures and the reasons for those that are missing; draw its picture to a file."""
    import torch
    from hydra.utils import instantiate

    from pe_lab.audit.audited_encoding import AuditedEncoding
    from pe_lab.audit.measures import measure_properties

    torch.set_num_threads(1)  # the number of threads changes rounding; processes use the other cores
    with no_exit():
        subject = AuditedEncoding(cfg.pe.name, instantiate(cfg.pe))
        if picture:
            from pe_lab.audit.pictures import save_picture

            save_picture(subject, AuditedEncoding("none", instantiate(none.pe)), picture)
        return measure_properties(subject)


if __name__ == "__main__":
    main()
