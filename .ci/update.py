"""Write again what is generated from the code, and show what changed: python .ci/update.py [NAME ...]

Run it after an encoding or a dataset was added or changed. With NAMEs, steps that have a part for each encoding or
dataset make those alone. Without, they make all, but the table of exports, which takes an hour: it gets what it lacks.
Places that are written by hand come first: while one lacks an encoding, it is named, and nothing is written.
"""

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = ROOT / "pe_lab/encodings/public.py"
FAMILIES = PUBLIC.parent / "families"
VARIANTS = PUBLIC.parent / "named.py"
INTERFACE = {  # public names of pe_lab.encodings beside its encodings, by module
    "base": ["PositionalEncoding", "UnfitError"],
    "cache": ["Cache"],
    "layout": ["PADDING", "UNMARKED", "Layout"],
    "memory": ["Carried"],
    "options": ["OptionError"],
    "sizes": ["Sizes"],
    "stack": ["LayerInput", "PassPositions", "Stack"],
    "terms": ["Rotary", "Softmax", "Stick", "Terms"],
}
HEAD = '"""Public names, written by .ci/update.py: the classes that conf/pe names, and those of their interface."""\n'


def main() -> None:
    """Run the steps one after the other; the first that fails ends the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a file of conf/pe or conf/data")
    parser.add_argument("--only", choices=STEPS, nargs="+", default=list(STEPS), help="steps; all by default")
    arguments = parser.parse_args()
    known, datasets = encodings(), {file.stem for file in (ROOT / "conf/data").glob("*.yaml")}
    if unknown := [name for name in arguments.names if name not in known and name not in datasets]:
        sys.exit(f"error: NAME must be a file of conf/pe or of conf/data, got {unknown[0]}")
    chosen = [name for name in arguments.names if name in known]
    sys.path.insert(0, str(ROOT))
    if lines := [*missing(chosen if arguments.names else list(known), arguments.only)]:
        sys.exit("\n".join(["nothing is written:", *dict.fromkeys(lines)]))
    before = changed()
    for step in arguments.only:
        if arguments.names and not chosen and step not in OF_DATASETS:
            continue
        print(f"{step}: {STEPS[step].__doc__}", flush=True)
        STEPS[step](arguments.names if step in OF_DATASETS else chosen)
    print("changed:", *sorted(changed().items() - before.items()) or ["nothing"], sep="\n  ")
    subprocess.run(["git", "--no-pager", "diff", "--stat"], cwd=ROOT, check=True)


def encodings() -> dict[str, str]:
    """Return the import path of each encoding of conf/pe by name."""
    configs = {file.stem: yaml.safe_load(file.read_bytes()) for file in sorted((ROOT / "conf/pe").glob("*.yaml"))}
    return {name: str((config or {}).get("_target_", "")) for name, config in configs.items()}


def missing(names: list[str], steps: list[str]) -> Iterator[str]:
    """Yield a line for each place that is written by hand and lacks an encoding, of those that steps rest on."""
    targets = encodings()
    for name in names:
        if "public" in steps:
            yield from missing_class(name, targets[name])
        if "pages" in steps:
            yield from missing_in_gallery(name, targets)
    if names and "proofs" in steps:
        listed = [sys.executable, "tests/helpers/proofs.py", "--unproven", *names]
        unproven = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        yield from (f'tests/encodings: no test has the mark pytest.mark.proves("{name}")' for name in unproven)


def missing_class(name: str, target: str) -> Iterator[str]:
    """Yield a line if there is no class of an encoding, or another one has its name and VARIANTS has not."""
    module, _, kind = target.removeprefix("pe_lab.encodings.").rpartition(".")
    files = [folder / f"{module.replace('.', '/')}.py" for folder in (FAMILIES, PUBLIC.parent)]
    file = next((path for path in files if path.is_file()), files[0])
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not kind:
        yield f"conf/pe/{name}.yaml: no _target_ with a file and a class"
    elif not re.search(rf"^class {re.escape(kind)}\b", text, re.MULTILINE):
        yield f"{file.relative_to(ROOT)}: no class {kind}, the _target_ of conf/pe/{name}.yaml"
    elif f'name: str = "{name}"' not in text and f'"{name}":' not in VARIANTS.read_text(encoding="utf-8"):
        yield f"{VARIANTS.relative_to(ROOT)}: VARIANTS has no {name}, and {kind} has another name"


def missing_in_gallery(name: str, targets: dict[str, str]) -> Iterator[str]:
    """Yield a line if an encoding has no family, or no entry of the gallery in the place that this gives it."""
    from pe_lab.gallery.definitions import FILE, definitions
    from pe_lab.gallery.encoding_families import FAMILIES

    modules = {other: target.split(".")[-2] if "." in target else "" for other, target in targets.items()}
    order = [module for family in FAMILIES.values() for module in family]
    if modules[name] not in order:
        yield f"pe_lab/gallery/encoding_families.py: FAMILIES has no file {modules[name]}"
    try:
        entries = [*definitions()]
    except ValueError as error:
        yield f"{FILE.parent.relative_to(ROOT)}/{error}"
        return
    listed = [other for other in targets if modules[other] in order and other in {*entries, name}]
    listed.sort(key=lambda other: (order.index(modules[other]), other))
    before = listed[listed.index(name) - 1] if name in listed[1:] else ""
    if name not in entries or (name in listed and ["", *entries][entries.index(name)] != before):
        yield f"{FILE.relative_to(ROOT)}: {name} must have an entry{before and f' behind {before}'}"


def changed() -> dict[str, str]:
    """Return the digests of files that differ from the last commit, by path."""
    listed = ["git", "ls-files", "--modified", "--others", "--exclude-standard"]
    paths = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    files = [path for path in paths if path and (ROOT / path).is_file()]
    made = subprocess.run(["git", "hash-object", "--", *files], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(zip(files, made.stdout.split(), strict=True)) if files else {}


def public(names: list[str]) -> None:
    """names that can be imported from pe_lab.encodings"""
    modules = defaultdict(set, {module: set(kinds) for module, kinds in INTERFACE.items()})
    for target in encodings().values():
        package, _, path = target.partition(".encodings.")
        module, _, kind = path.rpartition(".")
        if package == "pe_lab":
            modules[f"families.{module}" if (FAMILIES / f"{module}.py").is_file() else module].add(kind)
    lines = [f"from pe_lab.encodings.{module} import {', '.join(kinds)}" for module, kinds in sorted(modules.items())]
    every = ", ".join(repr(kind) for kinds in modules.values() for kind in kinds)
    PUBLIC.write_text("\n".join([HEAD, *lines, "", f"__all__ = [{every}]", ""]), encoding="utf-8")
    python("-m", "ruff", "check", "--quiet", "--fix", "--select", "I,RUF022", str(PUBLIC))
    python("-m", "ruff", "format", "--quiet", str(PUBLIC))


def golden(names: list[str]) -> None:
    """identities and first steps, in tests/golden"""
    chosen = ["-k", " or ".join(f"[{name}]" for name in names)] if names else []
    python("-m", "pytest", "tests/test_golden.py", "--write-golden", "-n", "0", "-q", "-p", "no:cacheprovider", *chosen)


def undefined(names: list[str]) -> None:
    """pairs of encoding and task that are not defined, in pe_lab/benchmark"""
    python("-c", f"from pe_lab.benchmark.undefined_encodings import write_undefined; write_undefined({names or None})")


def proofs(names: list[str]) -> None:
    """differences from what encodings are compared with, in docs/proofs.md"""
    python("tests/helpers/proofs.py", *names)


def export(names: list[str]) -> None:
    """encodings in a plain model, compiled, exported and in transformers: sweeps/results/export.csv"""
    rows = (ROOT / "sweeps/results/export.csv").read_text(encoding="utf-8").splitlines()[1:]
    missing = encodings().keys() - {row.partition(",")[0] for row in rows}
    if wanted := names or sorted(missing):
        python("-m", "benchmarks", "export", *wanted)


def families(names: list[str]) -> None:
    """encodings in every type of model of transformers: sweeps/results/families.csv"""
    python("-m", "benchmarks", "families", *(["--encodings", *names] if names else []))


def pages(names: list[str]) -> None:
    """generated parts of README.md and docs/"""
    python("docs/generate.py")


def sweeps(names: list[str]) -> None:
    """W&B sweeps of studies, in sweeps/agents"""
    python("sweeps/generate.py")


STEPS: dict[str, Callable[[list[str]], None]] = {
    step.__name__: step for step in (public, golden, undefined, proofs, export, families, pages, sweeps)
}
OF_DATASETS = ("golden", "pages")  # the others have nothing of a dataset


def python(*arguments: str) -> None:
    """Run a program of this checkout; its failure ends this one with its status."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
