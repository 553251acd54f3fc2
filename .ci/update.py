"""Write again what is generated from the code, and show what changed: python .ci/update.py [NAME ...]

Run it after an encoding or a dataset was added or changed. With NAMEs, steps that have a part for each encoding or
dataset make those alone. Without, they make all, but the table of exports, which takes an hour: it gets what it lacks.
"""

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = ROOT / "pe_lab/encodings/public.py"
FAMILIES = PUBLIC.parent / "families"
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
    files = sorted((ROOT / "conf/pe").glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))["_target_"] for file in files}


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
