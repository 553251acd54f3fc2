"""Measure how far encodings are from what they are compared with, for docs/proofs.md.

    python tests/helpers/proofs.py [NAME ...]

Runs the tests that are marked `proves` and keeps the largest absolute difference of what they compare. The name in the
mark may refer to a parameter of the test, as in "randomized_{name}": a name, a class or an encoding, whose name counts.
"""

import argparse
import contextlib
import inspect
import io
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/proofs.md"
TABLE = re.compile(r"(<!-- measured: differences -->\n).*?(<!-- end -->)", re.DOTALL)
DEFINITION = "its definition, by loops"


@dataclass
class Proof:
    """What tests found about one encoding and one oracle: the largest difference and the largest number, and dtypes."""

    values: tuple[float, float] | None = None
    gradients: tuple[float, float] | None = None
    dtypes: set[str] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)


class Recorder:
    """A pytest plugin that notes the differences of what marked tests compare.

    Args:
        names: encodings whose tests run; empty: all.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = names
        self.proofs: defaultdict[tuple[str, str], Proof] = defaultdict(Proof)
        self.current: list[Proof] = []
        self.gradients: list[Tensor] = []  # kept, so that no other tensor gets the id of one
        self.failed: list[str] = []
        self.marked: set[str] = set()
        self.unread: list[Path] = []  # files of tests that cannot be collected

    def pytest_configure(self) -> None:
        """Wrap the functions that compare, before test modules import them."""
        torch.testing.assert_close = self.noting(torch.testing.assert_close)
        torch.equal = self.noting(torch.equal)
        grad = torch.autograd.grad

        def noted(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
            found = grad(*args, **kwargs)
            self.gradients += [tensor for tensor in found if tensor is not None]
            return found

        torch.autograd.grad = noted

    def noting(self, compare: Callable[..., Any]) -> Callable[..., Any]:
        """Return a comparison that is noted if it succeeds."""

        def noted(got: Any, expected: Any, *args: Any, **kwargs: Any) -> Any:
            result = compare(got, expected, *args, **kwargs)
            for one, other in pairs(got, expected) if result is not False else ():
                self.note(one, other)
            return result

        return noted

    def note(self, got: Tensor, expected: Tensor) -> None:
        """Keep the difference of two tensors if it is the largest."""
        if not got.is_floating_point() or not got.numel():
            return
        one, other = got.detach().double(), expected.detach().double()
        difference, size = ((x.abs().nan_to_num(0.0, posinf=0.0).max().item()) for x in (one - other, other))
        kind = "gradients" if any(got is gradient for gradient in self.gradients) else "values"
        for proof in self.current:
            largest = getattr(proof, kind) or (0.0, 0.0)
            setattr(proof, kind, (max(difference, largest[0]), max(size, largest[1])))
            proof.dtypes.add(str(got.dtype).removeprefix("torch."))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and (ROOT / report.nodeid).is_file():
            self.unread.append(ROOT / report.nodeid)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        marks = {item: [proved(mark.args[0], item) for mark in item.iter_markers("proves")] for item in items}
        self.marked.update(*marks.values())
        items[:] = [item for item, names in marks.items() if (set(names) & set(self.names) if self.names else names)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        for mark in item.iter_markers("proves"):
            proof = self.proofs[proved(mark.args[0], item), oracle(mark.kwargs.get("by", DEFINITION))]
            proof.tests.add(f"{item.path.name}::{item.originalname}")
            self.current.append(proof)
        try:
            return (yield)
        finally:
            self.current, self.gradients = [], []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.failed.append(f"{report.nodeid} {report.outcome}")


def pairs(got: Any, expected: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the tensors of what was compared."""
    if isinstance(got, Tensor) and isinstance(expected, Tensor):
        yield got, expected
    elif isinstance(got, (tuple, list)):
        for one, other in zip(got, expected, strict=True):
            yield from pairs(one, other)


def proved(name: str, item: pytest.Function) -> str:
    """Return the encoding that a test is about."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return name.format(**{key: name_of(value) for key, value in parameters.items()})


def name_of(value: Any) -> str:
    """Return the name of an encoding, of its class, or the text before a comma."""
    value = getattr(value, "func", value)
    if isinstance(value, type):
        return str(inspect.signature(value).parameters["name"].default)
    return str(getattr(value, "name", value)).partition(",")[0]


def oracle(by: str) -> str:
    """Return what an encoding is compared with, with its version if it is a library."""
    try:
        return f"{by} {version(by).partition('+')[0]}"
    except (PackageNotFoundError, ValueError):
        return by


def run(recorder: Recorder, *options: str) -> int:
    """Run the marked tests, and return pytest's exit status."""
    return pytest.main(
        ["-p", "no:cacheprovider", "-q", "-m", "proves", *options, str(ROOT / "tests/encodings")], [recorder]
    )


def unproven(names: Collection[str]) -> list[str]:
    """Return the names that no mark has, nor a file of tests that cannot be collected, which may have it in a mark."""
    recorder = Recorder()
    with contextlib.redirect_stdout(io.StringIO()):
        run(recorder, "--collect-only")
    texts = [text for file in recorder.unread if "mark.proves" in (text := file.read_text())]
    return [name for name in names if name not in recorder.marked and not any(name in text for text in texts)]


HEAD = """\
| encoding | compared with | values | of up to | gradients | of up to | in | tests |
| :--- | :--- | ---: | ---: | ---: | ---: | :--- | :--- |"""


def row(name: str, by: str, proof: Proof) -> str:
    """Return a line of the table."""
    cells = [f"`{name}`", by]
    for largest in (proof.values, proof.gradients):
        cells += ["", ""] if largest is None else [f"{number:.0e}" if number else "0" for number in largest]
    cells += [", ".join(sorted(proof.dtypes)), ", ".join(f"`{test}`" for test in sorted(proof.tests))]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run the marked tests and write their differences; with names of encodings, only theirs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="encodings; all by default")
    parser.add_argument("--unproven", action="store_true", help="print the NAMEs without a marked test, and run none")
    arguments = parser.parse_args()
    names = arguments.names
    if arguments.unproven:
        print(*unproven(names), sep="\n")
        return
    recorder = Recorder(names)
    code = run(recorder)
    if code or recorder.failed:
        lines = [f"no test is marked with {name}" for name in names if name not in recorder.marked]
        sys.exit("\n".join([f"nothing is written: pytest ended with {code}", *lines, *recorder.failed]))
    text = PAGE.read_text()
    rows = {
        (f"`{name}`", by): row(name, by, proof)
        for (name, by), proof in recorder.proofs.items()
        if not names or name in names  # a test may have marks of others, whose other tests did not run
    }
    written, found = len(rows), TABLE.search(text)
    if names and found:
        old = {tuple(line.removeprefix("| ").split(" | ")[:2]): line for line in found[0].splitlines()[3:-1]}
        rows = {key: line for key, line in old.items() if key[0].strip("`") not in names} | rows
    lines = "\n".join([HEAD, *(rows[key] for key in sorted(rows, key=lambda key: (key[0].strip("`"), key[1])))])
    PAGE.write_text(TABLE.sub(lambda part: f"{part[1]}{lines}\n{part[2]}", text))
    print(f"{written} rows written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
