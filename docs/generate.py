"""Write the generated parts of README.md and docs/: python docs/generate.py [--check] [--figure].

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`. With --check nothing is written, and the
exit status is 1 if a file would change. With --figure the figures are drawn again.
"""

import argparse
import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import encoding_lists
import protocol_tables
import replication_tables
import yaml
from replication_tables import wrapped

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs/figures/depth_epochs_pe.svg"
QUICKSTART = ROOT / "sweeps/results/quickstart"  # of the sweep on docs/quickstart.md
MAIN = ROOT / "sweeps/results/depth_epochs_pe_2"  # of structured
HELD_OUT = ROOT / "sweeps/results/depth_epochs_pe_heldout"  # of structured_heldout
RESULTS = {"depth_epochs_pe": MAIN, "fair_depth_epochs_pe": ROOT / "sweeps/results/fair_depth_epochs_pe_tuned"}
BENCHMARK = ROOT / "pe_lab/benchmark/results"
EXPORT = ROOT / "sweeps/results/export.csv"
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def parts() -> dict[str, Callable[[], str]]:
    """Return the generated parts by name."""
    return {
        "encodings": encodings,
        "tasks": lambda: table(configs("data"), "data.{name}"),
        "text": text,
        "settings": settings,
        "studies": studies,
        "counts": counts,
        "main_findings": main_findings,
        "first_study": first_study,
        "verdicts": verdicts,
        "export": export,
        "families": families,
        "terms": terms,
        "float_positions": lambda: encoding_lists.declared("float_positions"),
        "contiguous_only": lambda: encoding_lists.declared("contiguous_only"),
        "kernel_refusals": encoding_lists.kernel_refusals,
        "windows": lambda: encoding_lists.with_term("window"),
        "rotations_of_sequences": encoding_lists.rotations_of_sequences,
        "benchmark": benchmark,
        "measured_tasks": measured_tasks,
        "longer_text": longer_text,
        "steps": steps,
        "replicated": replicated,
        "protocol_pairs": lambda: protocol_tables.errors("all pairs"),
        "protocol_baseline": lambda: protocol_tables.errors("baseline"),
        "protocol_replication": protocol_tables.replication,
        "protocol_alternatives": protocol_tables.alternatives,
        "protocol_tuning": protocol_tables.tuning,
        "protocol_pilot": protocol_tables.pilot,
        "replication": replication_tables.replication,
        "not_run": replication_tables.not_run,
        "papers": replication_tables.papers,
        "claims": replication_tables.claims,
        "universes": replication_tables.universes,
    }


def configs(group: str) -> list[dict[str, Any]]:
    """Return the configs of a group with their first comment, by name."""
    found = []
    for path in sorted((ROOT / "conf" / group).glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("# @package")]
        comment = []
        for line in lines:
            if not line.startswith("# "):
                break
            words = line.removeprefix("# ")
            comment.append(f"`{words.strip()}`" if words.startswith("  ") else words)  # an indented line is a command
        joined = re.sub(r"(?<![.:;,?])\n(?=[A-Z])", ". ", "\n".join(comment)).replace("\n", " ")
        found.append({"stem": path.stem, "comment": joined, **(yaml.safe_load(text) or {})})
    return found


def options(config: dict[str, Any]) -> str:
    """Return the options of a config with their values, as text."""
    kept = ("stem", "comment", "name", "defaults", "encoding")
    return ", ".join(f"`{key}={plain(value)}`" for key, value in config.items() if key[0] != "_" and key not in kept)


def plain(value: Any) -> str:
    """Return a value as it is written on a command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def table(found: list[dict[str, Any]], _: str = "") -> str:
    """Return a table of configs: name with a link to the class, first comment, options."""
    from hydra.utils import get_class

    lines = ["| name | what it is | options |", "| :--- | :--- | :--- |"]
    for config in found:
        comment = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", config["comment"])
        comment = comment.replace("|", "\\|")
        kind = get_class(config["_target_"])
        link = f"[`{config['stem']}`][{kind.__module__}.{kind.__qualname__}]"
        lines.append(f"| {link} | {comment} | {options(config)} |")
    return "\n".join(lines)


def terms() -> str:
    """Return a table of the fields of Terms: type, shape and meaning, as its docstring has them."""
    import inspect

    from pe_lab.encodings.terms import Terms

    arguments = inspect.getdoc(Terms).partition("Args:\n")[2]
    lines = ["| field | type | shape | what it is |", "| :--- | :--- | :--- | :--- |"]
    for entry in re.split(r"\n(?=    \w)", arguments):
        names, _, words = " ".join(entry.split()).partition(": ")
        shape, _, meaning = words.partition("] ") if words.startswith("[") else ("", "", words)
        types = Terms.__annotations__[names.partition(",")[0]]
        kinds = [kind for kind in getattr(types, "__args__", (types,)) if kind is not type(None)]
        named = " or ".join(f"`{getattr(kind, '__name__', kind)}`" for kind in kinds)
        fields = ", ".join(f"`{name}`" for name in names.split(", "))
        cells = fields, named, f"`{shape}]`" if shape else "", meaning[:1].upper() + meaning[1:]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def encodings() -> str:
    """Return a table of encodings for each kind, by module."""
    from pe_lab.gallery.encoding_families import FAMILIES

    by_module: dict[str, list[dict[str, Any]]] = {}
    for config in configs("pe"):
        by_module.setdefault(config["_target_"].split(".")[-2], []).append(config)
    sections = [
        f"### {kind}\n\n{table([config for module in modules for config in by_module.pop(module)])}"
        for kind, modules in FAMILIES.items()
    ]
    if by_module:
        sys.exit(f"error: FAMILIES must name every module with encodings, got none of {', '.join(by_module)}")
    return "\n\n".join(sections)


def text() -> str:
    """Return the windows of the default text at four lengths, and its reference levels at the default length.

    Without that of xz, which may depend on the version of its library.
    """
    from pe_lab.data.text.clm import CLM
    from pe_lab.data.text.mlm import MLM

    lines = [
        "| length | training windows | validation | test | test at 2 × the length | at 4 × |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    with TemporaryDirectory() as cache:
        for length in (128, 256, 512, 1024):
            data = CLM(0, "clm", length=length, test_sequences=None, cache=cache)
            sizes = [data.size(split) for split in ("train", "validation", "test")]
            sizes += [data.longer(factor).size("test") for factor in (2, 4)]
            lines.append(f"| {' | '.join(f'{size:,}' for size in (length, *sizes))} |")
        lines += ["", "| task | level | test loss | bits per byte |", "| :--- | :--- | ---: | ---: |"]
        for data in (CLM(0, "clm", cache=cache), MLM(0, "mlm", cache=cache)):
            for name, level in data.floors("test").items():
                if name != "xz":
                    lines.append(f"| `{data.name}` | {name} | {level['loss']:.3f} | {level['bits_per_byte']:.3f} |")
    return "\n".join(lines)


def settings() -> str:
    """Return every setting, a table for each group: default, range, what it is, what it changes."""
    from pe_lab.config import reference
    from pe_lab.config.trainer_arguments import ALIASES, DECIDED_ARGUMENTS

    groups = [one for one in reference.default_groups() if one.name != "attention"]
    sections = [f"## Groups\n\n{rows_of([('', one) for one in reference.default_groups()])}"]
    sections.append(
        f"## Every run\n\n{rows_of([('', one) for one in reference.read_config_settings(ROOT / 'conf/config.yaml')])}"
    )
    for group in ("model", "trainer", *(one.name for one in groups if one.name not in ("model", "trainer", "study"))):
        files = sorted((ROOT / "conf" / group).glob("*.yaml"))
        own = [file for file in files if "# @package _global_" not in file.read_text(encoding="utf-8")]
        found = [(f"`{group}={file.stem}`", one) for file in own for one in reference.read_config_settings(file, group)]
        presets = [f"`{group}={one['stem']}`: {one['comment']}" for one in configs(group) if len(own) < len(files)]
        if not found:
            continue
        table = rows_of([("", one) for _, one in found] if len(own) == 1 else found)
        listed = "".join("\n" + wrapped(f"- {line}") for line in presets)
        sections.append(f"## {group}\n\n{table}" + (f"\n\nFiles of conf/{group}:\n{listed}" if listed else ""))
        if group == "trainer":
            lines = ["| argument of `lightning.Trainer` | in the lab |", "| :--- | :--- |"]
            lines += [f"| `{name}` | another name of `{setting}` |" for name, (setting, _) in sorted(ALIASES.items())]
            lines += [
                f"| `{name}` | {' or '.join(map(str, ('left out', *values)))}: {why} |"
                for name, (values, why) in sorted(DECIDED_ARGUMENTS.items())
            ]
            sections[-1] += "\n\n" + "\n".join(lines)
    return "\n\n".join(sections)


def rows_of(found: list[tuple[str, Any]]) -> str:
    """Return a table of settings, each with the choice whose file has it; without that column where none is given."""
    choice = any(name for name, _ in found)
    head = ["choice"] * choice + ["setting", "default", "range", "what it is", "changes"]
    lines = [f"| {' | '.join(head)} |", f"|{' :--- |' * len(head)}"]
    for name, one in found:
        cells = [name] * choice + [f"`{one.name}`", f"`{one.default}`" if one.default else ""]
        cells += [
            one.range.replace("|", "\\|"),
            one.description.replace("|", "\\|"),
            one.changes if one.default else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def studies() -> str:
    """Return a table of studies: name, question and cost."""
    lines = ["| study | question and size | core-hours |", "| :--- | :--- | :--- |"]
    lines += [f"| `{one['stem']}` | {one['comment']} | {core_hours(one['stem'])} |" for one in configs("study")]
    return "\n".join(lines)


def core_hours(study: str) -> str:
    """Return what the shipped results of a study took, from their columns of cost."""
    import pandas as pd

    from pe_lab.system.exact_csv import read_csv

    if files := sorted(BENCHMARK.glob(f"{study}*.csv")):  # of one task, or of all
        table = pd.concat([read_csv(file) for file in files])
    else:
        folder = RESULTS.get(study, ROOT / "sweeps/results" / study)
        file = next((folder / name for name in ("outcomes.csv", "rows.csv") if (folder / name).is_file()), None)
        if file is None:
            return "not recorded"
        table = read_csv(file)
    if "core_seconds" in table:  # with all tries of rates
        return f"{table['core_seconds'].sum() / 3600:.1f} ({len(table)} cells)"
    trainings = table.sort_values("seconds").groupby("run").tail(1)  # cells of one training have its seconds so far
    hours = trainings["seconds"].sum() / 3600
    if trainings["threads"].isna().any():
        return f"{hours:.1f} hours of training ({len(table)} cells); threads not recorded"
    return f"{(trainings['seconds'] * trainings['threads']).sum() / 3600:.1f} ({len(table)} cells)"


def counts() -> str:
    """Return how many encodings, tasks and studies there are, with links to their lists."""
    groups = (("encodings", "pe"), ("tasks", "data"), ("studies", "study"))
    found = [f"[{len(configs(group))} {name}](docs/{name}.md)" for name, group in groups]
    return wrapped(f"There are {', '.join(found[:-1])} and {found[-1]}.")


def main_findings() -> str:
    """Return what the study of depth, epochs and encoding says, in three points."""
    from pe_lab import statistics
    from pe_lab.system.exact_csv import read_csv

    cells = read_csv(MAIN / "table.csv").set_index(["depth", "epochs", "pe"])
    level = cells["position_blind_split_known"].iloc[0]
    shallow, deep = (cells["loss"].xs((depth, 16), level=("depth", "epochs")) for depth in (1, 4))
    rows = read_csv(MAIN / "rows.csv")
    learned = rows[(rows["epochs"] == 16) & (rows["depth"] > 1)]  # settings with verdicts in the report
    lines = statistics.compare_cells(learned, "rope").set_index(["depth", "pe"])
    verdicts = lines["verdict"].unstack("pe")
    assert shallow.min() > level > deep.max()
    assert cells["loss"].xs(4, level="epochs").min() > level
    assert cells["loss"].xs((16, 16), level=("depth", "epochs")).max() < level
    assert not verdicts.isin(["better", "slightly better"]).any(axis=None)
    assert set(verdicts["sinusoidal"]) == {"worse"}
    assert set(verdicts["learnable"]) == {"slightly worse"}
    assert set(verdicts["lrope"]) == {"equivalent"}
    fixed, table = ([in_nats(lines.loc[(depth, name)]) for depth in (4, 16)] for name in ("sinusoidal", "learnable"))
    return f"""- **Depth and training decide most.** With four layers and 16 epochs every encoding solves the task
  ({deep.min():.3f} to {deep.max():.3f} nats; {level:.2f} can be reached without position). With one layer none does
  ({shallow.min():.2f} to {shallow.max():.2f}).
- **Where the task is solved, no encoding is better than `rope`.** After 16 epochs, `sinusoidal` is
  worse with four layers, by {fixed[0]} nats, and with sixteen, by
  {fixed[1]}. `learnable` is slightly worse, by {table[0]} and
  {table[1]} (means and 95 % intervals).
- **Training the frequencies of RoPE gains nothing here.** With four and sixteen layers, after 16
  epochs, `lrope` is equivalent to `rope`: the difference is below the margin of
  {lines["margin"].iloc[0]:.3f} nats."""


def in_nats(line: Any) -> str:
    """Return the size of a difference with its interval, which does not contain 0."""
    low, high = sorted((abs(line.low), abs(line.high)))
    return f"{abs(line.difference):.3f} [{low:.3f}, {high:.3f}]"


def first_study() -> str:
    """Return the table of the study of depth, epochs and encoding."""
    from pe_lab.system.exact_csv import read_csv

    rows = read_csv(MAIN / "table.csv")
    order = list(dict.fromkeys(rows["pe"]))
    lines = [
        f"| depth | epochs | {' | '.join(f'`{name}`' for name in order)} |",
        f"| ---: | ---: |{' ---: |' * len(order)}",
    ]
    for (depth, epochs), cells in rows.groupby(["depth", "epochs"]):
        by = cells.set_index("pe")
        shown = [f"{by.loss[name]:.3f} ± {(by.high[name] - by.low[name]) / 2:.3f}" for name in order]
        lines.append(f"| {depth} | {epochs} | {' | '.join(shown)} |")
    return "\n".join(lines)


def verdicts() -> str:
    """Return comparisons of the study of depth, epochs and encoding with `rope`, with the verdict on each."""
    from pe_lab import statistics
    from pe_lab.system.exact_csv import read_csv

    compared = statistics.compare_cells(read_csv(HELD_OUT / "rows.csv"), "rope")
    chosen = compared[compared["pe"].isin(["learnable", "lrope"]) & (compared["depth"] > 1)]
    lines = [
        "| depth | epochs | encoding | minus `rope`, 95 % | corrected p: not 0 | within the margin | verdict |",
        "| ---: | ---: | :--- | ---: | ---: | ---: | :--- |",
    ]
    for one in chosen.itertuples():
        difference = f"{one.difference:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"
        p = f"{one.p_corrected:.2g} | {one.p_equivalent_corrected:.2g}"
        lines.append(f"| {one.depth} | {one.epochs} | `{one.pe}` | {difference} | {p} | {one.verdict} |")
    return "\n".join(lines)


def export() -> str:
    """Return what the table of encodings in other models says: a row for each of its columns."""
    with EXPORT.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| place | encodings that work | largest difference | refused |", "| :--- | ---: | :--- | :--- |"]
    for place in list(rows[0])[1:]:
        differences: dict[str, float] = {}
        refused: dict[str, list[str]] = {}
        for row in rows:
            try:
                differences[row["encoding"]] = float(row[place])
            except ValueError:
                reason = row[place].removeprefix(f"{row['encoding']} ").partition(":")[0].partition(", got")[0]
                refused.setdefault(reason.partition(", these")[0], []).append(f"`{row['encoding']}`")
        largest = max(differences, key=differences.__getitem__)
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in refused.items())
        lines.append(f"| `{place}` | {len(differences)} | {differences[largest]:.1e} (`{largest}`) | {why} |")
    return "\n".join(lines)


def families() -> str:
    """Return the table of types of models of transformers: their own encoding, what is kept, and what is refused."""
    sys.path.append(str(ROOT))  # benchmarks are not installed
    from benchmarks.families import KEPT, OWN, REASONS, is_number, read

    lines = [
        "| type | own positions | differ by | kept beside them | encodings that work | refused |",
        "| :--- | :--- | ---: | :--- | ---: | :--- |",
    ]
    for kind, cells in read().items():
        own = cells.pop("own")
        refused = {name: cell for name, cell in cells.items() if not is_number(cell)}
        named = {name: next(short for part, short in REASONS.items() if part in cell) for name, cell in refused.items()}
        groups = {
            short: [name for name, each in named.items() if each == short] for short in dict.fromkeys(REASONS.values())
        }
        listed = ", ".join(f"{len(names)} {short}" for short, names in groups.items() if names)
        encoding = OWN.get(kind, "rope")
        its = f"`{encoding}` | {own}" if encoding else "none of the lab's | "
        lines.append(f"| `{kind}` | {its} | {KEPT.get(kind, '')} | {len(cells) - len(refused)} | {listed} |")
    return "\n".join(lines)


def benchmark() -> str:
    """Return a table of the tasks of the benchmark: question, cap, and how many encodings are measured."""
    from pe_lab.benchmark import task_statistics, task_tables
    from pe_lab.benchmark.tasks import benchmark_tasks

    rows = task_tables.read_all_rows()
    covered = task_statistics.progress(
        {name: task_statistics.published_rows(found) for name, found in rows.items()}
    ).set_index("task")
    lines = [
        "| task | question | cap, steps | encodings measured | of | seeds of each, at least |",
        "| :--- | :--- | ---: | ---: | ---: | ---: |",
    ]
    for task in benchmark_tasks():
        line = covered.loc[task.name]
        seeds = int(line["fewest seeds"]) if line.measured else ""
        counts = f"{task.cfg.steps:,} | {int(line.measured)} | {int(line.defined)} | {seeds}"
        lines.append(f"| `{task.name}` | {task.question} | {counts} |")
    return "\n".join(lines)


def measured_tasks() -> str:
    """Return how many tasks of the benchmark have results, and for how many encodings."""
    from pe_lab.benchmark import task_statistics, task_tables
    from pe_lab.benchmark.tasks import benchmark_tasks

    covered = task_statistics.progress(
        {name: task_statistics.published_rows(found) for name, found in task_tables.read_all_rows().items()}
    )
    names = [task.name for task in benchmark_tasks()]
    measured = covered.set_index("task").loc[names, "measured"].astype(int)
    results = ", ".join(f"`{name}` ({count})" for name, count in measured[measured > 0].items())
    without = " and ".join(f"`{name}`" for name in measured.index[measured == 0])
    count = (measured > 0).sum()
    have = "All of them have" if count == len(names) else f"{count} of them have"
    said = f"`pe-bench 2` has {len(names)} small tasks. {have} results, with this number of encodings: {results}."
    return wrapped(f"{said} Nothing is measured on {without} yet." if without else said)


def longer_text() -> str:
    """Return what pe-bench 2 says of text at 4 times the training length."""
    from pe_lab.benchmark import task_results
    from pe_lab.benchmark.task_statistics import margin_in_words
    from pe_lab.gallery.gallery_data import STEP, step_times

    times = step_times()[STEP]
    found = next((one for one in task_results.read_results() if one.task.name == "causal_text"), None)
    if found is None:
        return "Longer text is not measured yet."
    cfg, longest = found.task.cfg, found.at(4.0)
    best = listed([f"`{pe}`" for pe in found.best_at[4.0]], "or")
    highest = found.rows.groupby("pe")["lr"].agg(lambda rates: (rates == max(cfg.tune.rates)).sum())
    runs = found.rows.groupby("pe").size()
    untuned = listed([f"`{pe}`" for pe in highest.index[highest == runs]], "and")
    rates = listed([f"{rate:g}" for rate in cfg.tune.rates], "and")
    said = (
        f"**For a small causal language model at 4 times its training length**, use {best}. No other encoding is "
        f"better (p < 0.05, corrected over all pairs, and a mean difference of at least {margin_in_words(found.task)})."
    )
    setting = (
        f"The model has {cfg.model.depth} layers of width {cfg.model.width}. It is trained on windows of "
        f"{cfg.data.length} bytes of {cfg.data.corpus}, for at most {cfg.steps:,} steps. The learning rate is the best "
        f"of {rates} for each encoding and seed."
    )
    edge = f"With {untuned} it is the highest one in every seed." if untuned else ""
    lines = [
        "| encoding | 1 × | 2 × | 4 ×, 95 % interval | ranks at 4 × | seeds | "
        "seeds in which the highest rate was best | training step |",
        f"| :--- |{' ---: |' * 7}",
    ]
    for row in longest.table.itertuples():
        at_4x = f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]"
        losses = f"{row.loss_1x:.3f} | {row.loss_2x:.3f} | {at_4x}"
        ranks = " to ".join(dict.fromkeys((str(row.first), str(row.last))))
        cost = f"{times[row.pe]:.2f}" if row.pe in times else ""
        lines.append(f"| `{row.pe}` | {losses} | {ranks} | {row.runs} | {highest[row.pe]} | {cost} |")
    return "\n\n".join([wrapped(said), wrapped(f"{setting} {edge}".strip()), "\n".join(lines)])


def listed(words: list[str], conjunction: str) -> str:
    """Return words as a list in prose."""
    return f" {conjunction} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def steps() -> str:
    """Return a table of the training steps that take longer than with `rope` by a tenth, slowest first."""
    from pe_lab.gallery.gallery_data import STEP, step_times

    times = step_times()
    slow = [name for name, time in sorted(times[STEP].items(), key=lambda item: -item[1]) if time >= 1.1]
    lines = [f"| encoding | {' | '.join(times)} |", f"| :--- |{' ---: |' * len(times)}"]
    lines += [f"| `{name}` | {' | '.join(f'{ratios[name]:.2f}' for ratios in times.values())} |" for name in slow]
    said = f"Encodings that are not listed take less than 1.1 times as long as `rope` with {STEP}."
    return f"{wrapped(said)}\n\n" + "\n".join(lines)


def replicated() -> str:
    """Return what the replication of the benchmark found, by task."""
    from pe_lab.benchmark import task_tables
    from pe_lab.benchmark.fresh_seeds import compare_fresh_seeds, drawn_cells

    results = compare_fresh_seeds(task_tables.read_all_rows())
    if results.means.empty:
        return "It has not been run yet."
    names = list(results.means["task"].unique())
    summary = (
        f"{len(results.means)} of {len(drawn_cells())} cells are trained. Fresh mean differences lie in their 95 % "
        f"prediction interval in {results.predicted}. Fresh seeds contradict a verdict in {results.contradicted}."
    )
    lines = [
        "| task | cells again | pairs | in the prediction interval | verdicts | contradicted |",
        "| :--- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, part in [*((f"`{name}`", results.on_task(name)) for name in names), ("all", results)]:
        counts = f"{len(part.means)} | {part.predicted.total} | {part.predicted.count}"
        lines.append(f"| {name} | {counts} | {part.contradicted.total} | {part.contradicted.count} |")
    return "\n\n".join([wrapped(summary), "\n".join(lines)])


def filled(text: str) -> str:
    """Return a text with its generated parts written anew."""
    made = parts()
    return PART.sub(lambda part: f"{part[1]}{made[part[2]]()}\n{part[3]}", text)


def draw_figure() -> None:
    """Draw the figures of the README and the quickstart, and those of universes, from the committed rows."""
    import matplotlib as mpl

    from pe_lab.replication import universe
    from pe_lab.results import frame, plots
    from pe_lab.system.drawing import svg

    for name, finding in replication_tables.findings().items():
        if finding.entry.everywhere and finding.compared:
            (FIGURE.parent / replication_tables.picture(name)).write_text(
                svg(universe.draw_universe(finding).figure, name), encoding="utf-8"
            )
    cells = frame.load(str(MAIN)).cells
    with mpl.rc_context({"font.size": 13}):
        figure = plots.over_epochs(cells, panel_width=2.6, beside=False, baseline="rope").figure
        FIGURE.write_text(svg(figure, FIGURE.stem), encoding="utf-8")
        figure = plots.over_epochs(frame.load(QUICKSTART).cells).figure
        (FIGURE.parent / "quickstart.svg").write_text(svg(figure, "quickstart"), encoding="utf-8")


def main() -> None:
    """Write the generated parts, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    parser.add_argument("--figure", action="store_true", help="draw the figures again")
    arguments = parser.parse_args()
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    old = {path: path.read_text(encoding="utf-8") for path in paths}
    new = {path: filled(text) for path, text in old.items()}  # all of it, before anything is written
    changed = [path for path in paths if new[path] != old[path]]
    for path in changed if not arguments.check else ():
        path.write_text(new[path], encoding="utf-8")
    listed = ", ".join(str(path.relative_to(ROOT)) for path in changed) or "none"
    print(f"{len(changed)} files {'differ' if arguments.check else 'written'}: {listed}")
    if arguments.figure:
        draw_figure()
    sys.exit(int(arguments.check and bool(changed)))


if __name__ == "__main__":
    main()
