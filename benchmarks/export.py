"""Run every encoding in a plain model, decoded with a cache, compiled, exported and as ONNX, and in transformers."""

import csv
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import RESULTS, run_benchmark
from benchmarks.plain import MARKS, PlainModel, plain_model
from benchmarks.transformers_models import with_encoding
from pe_lab.encodings import UNMARKED, PaTH, Randomized
from pe_lab.encodings.named import encodings
from pe_lab.system.arguments import Parser
from pe_lab.system.names import unknown_name_message

LENGTHS = (8, 12)  # of the traced input, and of another that the same program takes
MIN_LENGTH, MAX_LENGTH = 4, 512  # lengths that a program is exported for
BATCH = 2
FAILED = "failed:"  # begins the cell of an error that is no reason
Run = Callable[..., Tensor]


def main() -> None:
    """Read the arguments and make the table."""
    parser = Parser("benchmarks export", description=__doc__)
    parser.add_argument("encodings", nargs="*", help="names in conf/pe; all by default")
    parser.add_argument("--columns", nargs="+", default=[], help="only these columns of the table")
    parser.add_argument("--to", type=Path, default=RESULTS / "export.csv", metavar="FILE", help="table (%(default)s)")
    run_benchmark(parser, lambda arguments: write_table(arguments.encodings, arguments.columns, arguments.to))


class NotApplicableError(ValueError):
    """A column does not apply to an encoding; the message is the reason."""


def token_embeddings(length: int, width: int = 16) -> Tensor:
    """Return token embeddings, the same each time."""
    return torch.randn(BATCH, length, width, generator=torch.Generator().manual_seed(length))


def model_inputs(model: PlainModel, length: int) -> dict[str, Tensor]:
    """Return the inputs of a model by name: token embeddings, and marks if its encoding reads them."""
    arguments = {"x": token_embeddings(length)}
    if model.stack.first.reads_marks:
        generator = torch.Generator().manual_seed(length)
        arguments["marks"] = torch.randint(UNMARKED, MARKS + 1, (BATCH, length), generator=generator)
    return arguments


def seeded(run: Run, arguments: dict[str, Tensor]) -> Tensor:
    """Return what is computed of inputs when random positions are drawn from a given seed."""
    torch.manual_seed(1)
    return run(**arguments)


@torch.no_grad()
def at_lengths(model: PlainModel, run: Run) -> float:
    """Return the largest difference between a program and the model it was made from, at both lengths."""
    arguments = [model_inputs(model, length) for length in LENGTHS]
    return largest_number(difference(seeded(run, each), seeded(model, each)) for each in arguments)


def difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference between two tensors; NaN where either has one."""
    if actual.shape != expected.shape:
        raise AssertionError(f"shapes differ: {list(actual.shape)} and {list(expected.shape)}")
    return (actual - expected).abs().max().item()


def largest_number(differences: Iterable[float]) -> float:
    """Return the largest number; NaN if one is."""
    return torch.tensor(list(differences), dtype=torch.float64).max().item()


def plain(model: PlainModel) -> float:
    """Compare attention as `auto` computes it in float32 with the reference in float64."""
    exact = PlainModel(deepcopy(model.stack), "reference", mlp=False)
    exact.layers.load_state_dict(model.layers.state_dict())
    exact.double()
    return at_lengths(model, lambda x, **marks: exact(x.double(), **marks).float())


def compiled(model: PlainModel) -> float:
    """Compile the model in one graph: by inductor without gradients, and by aot_eager, with all gradients compared."""
    torch.compiler.reset()
    arguments = model_inputs(model, LENGTHS[0])
    with torch.no_grad():
        apart = difference(seeded(torch.compile(model, fullgraph=True), arguments), seeded(model, arguments))
    torch.compiler.reset()
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    return largest_number([apart, *map(difference, _with_gradients(run, model), _with_gradients(model, model))])


def _with_gradients(run: Run, model: PlainModel) -> list[Tensor]:
    arguments = model_inputs(model, LENGTHS[0])
    x = arguments["x"].requires_grad_()
    out = seeded(run, arguments)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)) / out.numel()
    leaves = [x, *(parameter for parameter in model.parameters() if parameter.requires_grad)]
    gradients = torch.autograd.grad(out, leaves, upstream, allow_unused=True)
    return [out.detach(), *(g for g in gradients if g is not None)]


def exported(model: PlainModel) -> float:
    """Export the model by torch.export, strict and not, for any length, and run it at two."""
    return largest_number(at_lengths(model, _program(model, strict).module()) for strict in (False, True))


def _program(model: PlainModel, strict: bool) -> torch.export.ExportedProgram:
    length = torch.export.Dim("T", min=MIN_LENGTH, max=MAX_LENGTH)
    arguments = model_inputs(model, LENGTHS[0])
    shapes = {name: {1: length} for name in arguments}
    return torch.export.export(model, (), arguments, dynamic_shapes=shapes, strict=strict)


def onnx(model: PlainModel) -> float:
    """Export the model as ONNX, for any length, and run it by onnxruntime at two."""
    if isinstance(model.stack.first, Randomized):
        raise NotApplicableError("ONNX has no random permutation, from which positions are drawn")
    if isinstance(model.stack.first, PaTH):
        raise NotApplicableError("ONNX solves no triangular equations, by which reflections are multiplied")
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise ModuleNotFoundError(f"the column onnx needs the packages onnx, onnxscript and onnxruntime: no {missing}")
    import onnxruntime

    with without_export_warnings():
        program = torch.onnx.export(_program(model, strict=False), dynamo=True, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(**arguments: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in arguments.items()})[0])

    return at_lengths(model, run)


@torch.no_grad()
def cached(model: PlainModel) -> float:
    """Decode token by token with a cache, in float64, and compare with the whole sequences."""
    if reason := model.stack.first.whole_sequence:
        raise NotApplicableError(reason)
    model, arguments, cache = model.double(), model_inputs(model, LENGTHS[-1]), model.stack.cache()
    arguments["x"] = arguments["x"].double()
    tokens = ({name: value[:, [index]] for name, value in arguments.items()} for index in range(LENGTHS[-1]))
    parts = [model(**token, cache=cache) for token in tokens]
    return difference(torch.cat(parts, 1), model(**arguments))


def in_transformers(kind: str) -> Callable[[PlainModel], float]:
    """Return the column of a model of transformers."""

    def column(model: PlainModel) -> float:
        try:
            return with_encoding(kind, model.stack.first.name, model.stack.depth)
        except ValueError as error:
            raise NotApplicableError(str(error)) from None

    return column


@contextmanager
def without_export_warnings() -> Iterator[None]:
    """Keep torch's exporter from logging and warning about itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# by name: returns the largest difference, or raises NotApplicableError with the reason
COLUMNS: dict[str, Callable[[PlainModel], float]] = {
    "plain": plain,
    "cached": cached,
    "llama": in_transformers("llama"),
    "gpt2": in_transformers("gpt2"),
    "bert": in_transformers("bert"),
    "compile": compiled,
    "export": exported,
    "onnx": onnx,
}


def cell(name: str, column: str) -> str:
    """Return the largest difference of an encoding in a column, with two digits, or why there is none, in one line."""
    try:
        return f"{COLUMNS[column](plain_model(name)):.1e}"
    except NotApplicableError as reason:
        return str(reason)
    except Exception as error:  # of any part of PyTorch: the table shows it, and its test refuses it
        return f"{FAILED} {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def write_table(names: Sequence[str], columns: Sequence[str], path: Path) -> None:
    """Compute the cells of these encodings and columns, and write them among those that the file has.

    Raises:
        ValueError: an encoding or a column is unknown.
    """
    for what, chosen, choices in (("pe", names, list(encodings())), ("--columns", columns, list(COLUMNS))):
        if unknown := [name for name in chosen if name not in choices]:
            raise ValueError(unknown_name_message(what, choices, unknown[0]))
    rows = read_table(path)
    for name in names or encodings():
        row = rows.setdefault(name, {})
        for column in columns or COLUMNS:
            row[column] = cell(name, column)
            print(f"{name:24} {column:10} {row[column]}", flush=True)
        _write(rows, path)


def read_table(path: Path) -> dict[str, dict[str, str]]:
    """Return the cells of a file by encoding and column; none if there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row.pop("encoding"): row for row in csv.DictReader(file)}


def _write(rows: dict[str, dict[str, str]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["encoding", *COLUMNS], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({"encoding": name, **rows[name]} for name in sorted(rows))
