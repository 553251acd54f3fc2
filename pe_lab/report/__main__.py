"""Write a report of a ledger, of one of its studies, or of a study's folder.

pe-lab report depth_epochs_pe                   a study of the ledger in ./ledger
pe-lab report FOLDER [--study NAME]             a ledger, or a study's folder with rows.csv
pe-lab report wandb:ENTITY/PROJECT              the runs of a W&B project
pe-lab report STUDY --paper DIR                 LaTeX tables, figures and a methods paragraph as well

Writes report.html, one file that needs no network.
"""

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_lab import config
from pe_lab.ledger.format import FORMAT_FILE
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.exact_csv import read_csv
from pe_lab.system.files import require_writable, write_text
from pe_lab.system.names import unknown_name_message
from pe_lab.system.plain import read_yaml

if TYPE_CHECKING:
    import pandas as pd

    from pe_lab.report.report_subject import ReportSubject
    from pe_lab.results.frame import Results
    from pe_lab.statistics import Margin


def main() -> None:
    """Read the arguments and write the report."""
    parser = Parser("pe_lab.report", description=__doc__)
    parser.add_argument("source", help="a study's name, a ledger, a study's folder, or wandb:ENTITY/PROJECT")
    parser.add_argument(
        "--ledger", default="ledger", help="ledger in which a study is looked up by its name (default: ledger)"
    )
    parser.add_argument("--study", help="name of a study, if the source is a ledger")
    parser.add_argument(
        "--baseline",
        help="the encoding that others are compared with, instead of all pairs (default: the declared one)",
    )
    parser.add_argument(
        "--against",
        default="",
        help="the encoding that is compared with the baseline in every setting (default: the best)",
    )
    parser.add_argument(
        "--margin",
        help="the smallest difference that matters, as '0.02 nats' (default: that of the study; else 0.05 gap: 5 "
        "percent of the gap between the task's floors; without a gap, as in text, images and bag, 0.02 nats)",
    )
    parser.add_argument("--metric", default="loss", help="test metric to compare, such as accuracy (default: loss)")
    parser.add_argument("--audit", help="folder of an audit, for the table of properties")
    parser.add_argument("--out", help="folder for report.html (default: beside the study's tables)")
    parser.add_argument(
        "--paper", metavar="DIR", help="write LaTeX tables, figures and a methods paragraph to this folder"
    )
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> None:
        with config.add_config_dirs(sys.argv[1:]) as words:
            report(parser.parse_args(words))

    run_program(program, (ValueError, OSError, RecursionError, MemoryError))


def report(arguments: argparse.Namespace) -> None:
    """Load the results and write report.html.

    Raises:
        ValueError: there is no such source, study, baseline, metric, audit or encoding to compare, or no such margin.
    """
    paper_folder = None if arguments.paper is None else Path(arguments.paper)
    if paper_folder is not None:
        from pe_lab.report import paper

        require_writable("--paper", paper_folder)
        paper.require_new(paper_folder)
    from pe_lab.results.required_columns import require_costs

    began = time.perf_counter()
    results, load, beside = _load(arguments)
    out = Path(arguments.out) if arguments.out else beside
    require_writable("--out", out)
    if len(results.cells):
        require_costs(results.cells, f"{results.name}: rows.csv")
    if _is_tuned(results):
        _require_declared(results, arguments)
    baseline, audit, margin = arguments.baseline or _baseline(results), _audit(arguments.audit), _margin(arguments)
    if len(results.cells):
        _require_measured(results.cells, arguments.metric, baseline, arguments.against)
    print(f"{results.name}: drawing {len(results.cells)} cells", flush=True)
    subject = _subject(results, load, arguments, baseline, audit, margin)
    count = 0 if paper_folder is None else len(paper.write(subject, paper_folder))
    from pe_lab.report.page import html
    from pe_lab.report.sections import sections

    write_text(out / "report.html", html(f"pe_lab: {results.name}", sections(subject)))
    if results.refused:
        print(f"partial: {len(results.refused)} entries were refused; the report lists them", file=sys.stderr)
    if paper_folder is not None:
        print(f"{paper_folder / 'paper.tex'}: {count} files; next: pdflatex paper.tex in that folder")
    print(
        f"{out / 'report.html'}: {len(results.cells)} cells, {time.perf_counter() - began:.1f} s; "
        f"next: open it in a browser{', or --paper DIR for LaTeX tables and figures' * (paper_folder is None)}"
    )


def _load(arguments: argparse.Namespace) -> tuple["Results", str, Path]:
    """Load the results. Return them, the line of code that loads them, and the folder of the study's tables."""
    from pe_lab.results import frame, wandb_project

    if arguments.source.startswith(wandb_project.SOURCE_PREFIX):
        project = arguments.source.removeprefix(wandb_project.SOURCE_PREFIX)
        results = wandb_project.load(project)
        return results, f"results = wandb_project.load({project!r})", Path(results.name)
    folder, study = locate(arguments.source, arguments.ledger, arguments.study)
    load = f"results = frame.load({str(folder)!r}{f', {study!r}' if study else ''})"
    return frame.load(folder, study), load, folder / "studies" / study if study else folder


def _is_tuned(results: "Results") -> bool:
    """Return whether the learning rate of each seed was tuned."""
    return results.declared.tune is not None and len(results.cells) > 0


def _margin(arguments: argparse.Namespace) -> "Margin | None":
    if arguments.margin is None:
        return None
    from pe_lab.statistics import Margin

    return Margin.parse(arguments.margin)


def _require_measured(cells: "pd.DataFrame", metric: str, baseline: str, against: str) -> None:
    """Require that the metric was measured, and that the encodings are among the cells.

    Raises:
        ValueError: one of them is not there.
    """
    from pe_lab.statistics.cells import metric_column

    metric_column(cells, metric)
    names = list(cells["pe"].unique())
    others = [name for name in names if name != baseline]
    for setting, choices, name in (("baseline", names, baseline), ("against", others, against)):
        if name and name not in choices:
            raise ValueError(unknown_name_message(setting, choices, name))


def _subject(
    results: "Results",
    load: str,
    arguments: argparse.Namespace,
    baseline: str,
    audit: "pd.DataFrame",
    margin: "Margin | None",
) -> "ReportSubject":
    """Return the subject of the report."""
    from pe_lab.report.report_subject import ReportSubject
    from pe_lab.report.tuned import TunedSubject

    command = command_of(results)
    if _is_tuned(results):
        return TunedSubject.of(results, load, command, audit)
    asked = arguments.baseline is not None
    return ReportSubject(results, load, command, baseline, arguments.metric, audit, arguments.against, margin, asked)


def _require_declared(results: "Results", arguments: argparse.Namespace) -> None:
    """Require that no option chooses what a study declares whose learning rates are tuned for each seed.

    Raises:
        ValueError: an option chooses it.
    """
    for name in ("baseline", "against", "margin"):
        if getattr(arguments, name):
            raise ValueError(
                f"--{name} must not be given for {results.name}, whose learning rates are tuned for each seed: what it "
                f"compares is declared with it, got {getattr(arguments, name)!r}"
            )
    if arguments.metric != "loss":
        raise ValueError(f"--metric must be loss for a study with rates tuned for each seed, got {arguments.metric!r}")


def locate(source: str, ledger: str, study: str | None) -> tuple[Path, str | None]:
    """Return the folder to load and the name of its study.

    Raises:
        ValueError: the source is neither a folder nor a study of the ledger.
    """
    known = Path(source).name == source and (Path(ledger) / "studies" / source).is_dir()
    # a folder of that name may be the text that a study was trained on
    if Path(source).is_dir() and not (known and _is_without_results(Path(source))):
        return Path(source), study
    if known:
        if study not in (None, source):
            raise ValueError(f"--study needs a ledger's folder as the source, got --study {study} and {source!r}")
        return Path(ledger), source
    studies = sorted(path.parent.name for path in Path(ledger).glob("studies/*/rows.csv"))
    if train := command(source):
        shipped = ", ".join(_shipped(source))
        line = f"{source} must be trained before its report, got no such study in {ledger}: {train}"
        raise ValueError(f"{line}; or report committed results: {shipped}" if shipped else line)
    if not studies:
        train = f"pe-lab run -m study_name={source if source.isidentifier() else 'NAME'} pe=rope,alibi"
        raise ValueError(
            f"source must be a folder, or a study in {ledger}, got {source!r}: no study is there; {train} trains one"
        )
    raise ValueError(unknown_name_message("source", studies, source, f" (studies in {ledger}), or a folder"))


def _shipped(study: str) -> list[str]:
    """Return the folders of a checkout with results of a study, or of variants of it; none in an installed package."""
    results = config.config_folder().parent / "sweeps/results"
    return sorted(os.path.relpath(file.parent) for file in results.glob(f"{study}*/rows.csv"))


def _is_without_results(folder: Path) -> bool:
    return not any((folder / name).exists() for name in (FORMAT_FILE, "rows.csv"))


def command(name: str) -> str:
    """Return the command that trains a study of conf/study or of a user's folder, or an empty string."""
    file = config.find_folders().file("study", name)
    if file is None:
        return ""
    flags = [] if file.is_relative_to(config.config_folder()) else config.config_dir_flags()
    return shlex.join(["pe-lab", "run", *flags, "-m", f"+study={name}"])


def command_of(results: "Results") -> str:
    """Return `command` of a study, with `data=` where its file trains other tasks than those of the cells.

    On the command line other values can be given than those in a study's file: the cells tell. Empty where other
    settings than the task differ.
    """
    from omegaconf import OmegaConf

    from pe_lab.results.columns import setting_columns
    from pe_lab.results.frame import UNKNOWN_TASK

    study, train = config.find_folders().stated("study", results.name), command(results.name)
    if study is None or results.cells.empty:
        return train
    params = OmegaConf.select(study, "hydra.sweeper.params") or {}
    for column in setting_columns(results.cells):
        name = "model.depth" if column == "depth" else column
        stated = params[name] if name in params else _task(study) if name == "data" else OmegaConf.select(study, name)
        values = {_plain(value) for value in str(stated).split(",")}
        written = isinstance(stated, (str, int, float)) and not any(sign in str(stated) for sign in "([{$")
        measured = list(dict.fromkeys(_plain(value) for value in results.cells[column].dropna()))
        if not written or set(measured) <= values | {UNKNOWN_TASK}:
            continue
        if name != "data":
            return ""
        train += f" data={','.join(measured)}"
    return train


def _task(study: Any) -> str:
    """Return the task that a study's file chooses by its defaults, or else that of every run."""
    for entry in study.get("defaults") or ():
        if isinstance(entry, str) and entry != "_self_":
            return _task(config.find_folders().stated("study", entry))
        if not isinstance(entry, str) and "override /data" in entry:
            return str(entry["override /data"])
    defaults = read_yaml((config.config_folder() / "config.yaml").read_bytes())["defaults"]
    return str(next(entry["data"] for entry in defaults if not isinstance(entry, str) and "data" in entry))


def _plain(value: object) -> str:
    """Return a value as text, the same for 0.001 and 1e-3."""
    try:
        return f"{float(str(value)):g}"
    except ValueError:
        return str(value).strip()


def _baseline(results: "Results") -> str:
    """Return the encoding that the study declared as its baseline, or else the first; empty without cells."""
    if results.cells.empty:
        return ""
    names, declared = list(results.cells["pe"].unique()), results.declared.baseline
    return declared if declared is not None and declared in names else str(names[0])


def _audit(folder: str | None) -> "pd.DataFrame":
    """Load the table of an audit; empty for None."""
    import pandas as pd

    if folder is None:
        return pd.DataFrame()
    table = Path(folder) / "table.csv"
    if not table.is_file():
        raise ValueError(f"--audit must be a folder with the table.csv of an audit, got {folder!r}")
    return read_csv(table)


if __name__ == "__main__":
    main()
