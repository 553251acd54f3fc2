"""Put every encoding into a small model of every type of transformers that `replace` takes, and compare with itself.

A cell is how far logits of a sequence in a padded batch are from those of the sequence alone, or the reason why the
encoding is refused. The row `own` is the model's own encoding, compared with the original.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import RESULTS, run_benchmark
from benchmarks.transformers_models import DEPTH, KINDS, LENGTH, NO_LENGTH, VOCABULARY, logits, padded, small
from pe_lab.encodings.named import encodings
from pe_lab.system.arguments import Parser
from pe_lab.system.names import unknown_name_message

TABLE = RESULTS / "families.csv"
OWN = {  # the encoding that a model has itself
    **dict.fromkeys(("bloom", "mpt"), "alibi"),
    **dict.fromkeys(("bert", "gpt2", "opt", "roberta", "vit"), "learnable"),
    **dict.fromkeys(("t5", "mt5"), "t5"),
    "deberta-v2": "",
}

KEPT = {  # what a type has beside positions
    "deberta-v2": "the convolution beside the first layer",
    "gemma2": "soft cap, windows, `query_pre_attn_scalar`",
    "gemma3_text": "windows, a base of rotations for each type of layer, norms of queries and keys",
    "gpt_neox": "rotation of a part of a head",
    "mistral": "window",
    "modernbert": "windows, a base of rotations for each type of layer",
    "mpt": "`clip_qkv`, `softmax_scale`",
    "olmo2": "norms of queries and keys",
    "phi3": "rotation of a part of a head, window",
    "qwen2": "windows of some layers",
    "qwen3": "norms of queries and keys",
    "smollm3": "layers without rotations",
    "vit": "the class token, which is position 0",
}
REASONS = {  # a part of each reason, and its name in the documentation
    "causal attention only": "causal",
    "positions on a grid": "grid",
    "marks of tokens": "marks",
    "draws its own": "draws",
    "needs an encoding of positions": "draws",
    "rotates whole heads": "whole heads",
    "alternates over layers": "alternates",
}


def main() -> None:
    """Read the arguments and make the table."""
    parser = Parser("benchmarks families", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="types of models; all by default")
    parser.add_argument("--encodings", nargs="+", default=[], metavar="NAME", help="only these; all by default")
    parser.add_argument("--to", type=Path, default=TABLE, metavar="FILE", help="table (%(default)s)")
    run_benchmark(parser, lambda each: write_table(each.kinds or list(KINDS), each.encodings, each.to))


def write_table(kinds: Sequence[str], names: Sequence[str], to: Path) -> None:
    """Measure types of models with encodings, and write them over those in the table."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(unknown_name_message("kind", KINDS, unknown[0]))
    if unknown := [name for name in names if name not in encodings()]:
        raise ValueError(unknown_name_message("encoding", encodings(), unknown[0]))
    there = read(to) if to.exists() else {}
    for kind in kinds:
        measured = {name: cell(kind, name) for name in names or encodings()}
        cells = there.get(kind, {}) | {"own": difference_from_original(kind)} | measured
        there[kind] = {name: cells[name] for name in ("own", *encodings()) if name in cells}
        print(
            f"{kind:12} {len(measured)} cells, {sum(not is_number(x) for x in measured.values())} refused", flush=True
        )
    text = io.StringIO()
    rows = [("model", "encoding", "difference")]
    rows += [(kind, name, there[kind][name]) for kind in KINDS if kind in there for name in there[kind]]
    csv.writer(text, lineterminator="\n").writerows(rows)
    to.write_text(text.getvalue(), encoding="utf-8")


def read(path: Path = TABLE) -> dict[str, dict[str, str]]:
    """Return the cells of each type of model, by encoding."""
    cells: dict[str, dict[str, str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cells.setdefault(row["model"], {})[row["encoding"]] = row["difference"]
    return cells


def is_number(cell: str) -> bool:
    """Return whether a cell has a difference, and no reason."""
    return cell[:1].isdigit()


@torch.no_grad()
def cell(kind: str, name: str) -> str:
    """Return the cell of an encoding."""
    depth = 4 if name == "rnope_swa" else DEPTH
    try:
        return f"{padded(kind, name, depth):.1e}"
    except ValueError as error:
        return str(error)


@torch.no_grad()
def difference_from_original(kind: str) -> str:
    """Return how far a model with its own encoding in the place of its positions is from the original."""
    from pe_lab.hf import replace

    name = OWN.get(kind, "rope")
    if not name:
        return "no encoding is the same"
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(2, VOCABULARY, (2, LENGTH - 1), generator=generator)
    inputs = torch.randn(2, 1, 12, 12, generator=generator) if kind == "vit" else tokens
    original, model = small(kind), small(kind)
    length = LENGTH if kind in NO_LENGTH else None
    return f"{(logits(replace(model, name, length=length), inputs) - logits(original, inputs)).abs().max().item():.1e}"
