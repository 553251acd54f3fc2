"""What is known of an encoding before anything is trained: its class, its properties, its picture and its curves.

A portrait takes a second or two. It is kept in a folder, by the hash of all that it depends on.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from inspect import getsource, unwrap
from pathlib import Path
from typing import Any, get_type_hints

import matplotlib as mpl
import torch
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.attention import triton
from pe_lab.audit.audited_encoding import LENGTH, AuditedEncoding, random_vectors
from pe_lab.audit.measures import measure_properties
from pe_lab.audit.pictures import draw_picture
from pe_lab.gallery.kernels import Curves, curves
from pe_lab.system.drawing import STYLE, svg
from pe_lab.system.files import canonical_form, digest, is_writable, parse_json, read_bytes, write_json
from pe_lab.system.plain import has_type

PACKAGE = Path(__file__).parents[1]
READ = ("encodings", "attention/*.py", "attention/triton/__init__.py", "model", "audit", "data/base.py")
PLACES = {"left": 0.1, "right": 0.97, "top": 0.9, "bottom": 0.05, "wspace": 0.26, "hspace": 0.52}  # of panels
PIXELS = (800, 960)  # of a picture
PANELS = tuple(  # left, top, width and height of its panels, in pixels, with their titles
    (left, top, 400, height) for top, height in ((38, 304), (342, 308), (650, 306)) for left in (0, 400)
)
OF_DEVICES = ("CUDA", "GPU", "triton")  # in reasons that are about the machine, not about the encoding


@dataclass(frozen=True)
class Portrait:
    """What is known of an encoding before anything is trained.

    Attributes:
        name: the name in conf/pe.
        target: the import path of what makes it.
        family: the first line of its module.
        module: the module of its class.
        code: the source of its class.
        options: the options in conf/pe, by dotted name.
        causal_only, on_grid, reads_marks: the declarations of its needs, see `Declarations`.
        fused: the reason why the Triton kernels refuse it; an empty text if they do not.
        properties: the properties that the audit measures, by column.
        reasons: the reasons why properties are missing, by column.
        curves: the curves of its scores by distance, see `kernels.curves`.
        picture: the picture, as SVG.
    """

    name: str
    target: str
    family: str
    module: str
    code: str
    options: dict[str, Any]
    causal_only: bool
    on_grid: bool
    reads_marks: bool
    fused: str
    properties: dict[str, float]
    reasons: dict[str, str]
    curves: Curves
    picture: str


def portrait(name: str, sliders: Mapping[str, tuple[Any, ...]], folder: Path, audited: bool = False) -> Portrait:
    """Return the portrait of an encoding: from the folder, or made now and kept there.

    Args:
        sliders: options with the values for which curves are computed.
        folder: of portraits.
        audited: whether there is a table of properties already, so that they are not measured.

    Raises:
        ValueError: the folder lacks it and cannot be written to.
    """
    path = portrait_file(name, sliders, folder, audited)
    if (kept := _read_portrait(path, name)) is not None:
        return kept
    if not is_writable(folder):
        raise ValueError(f"--cache lacks {name}, and must be a folder that can be written to, got {str(folder)!r}")
    with _one_thread():
        drawn = _make(name, sliders, audited)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-????????????????.*"):
        old.unlink()
    value = asdict(drawn)
    write_json(path, {"portrait": value, "digest": digest(value)})
    return drawn


def portrait_file(name: str, sliders: Mapping[str, tuple[Any, ...]], folder: Path, audited: bool) -> Path:
    """Return the file in which a portrait of the present source is kept."""
    key = f"{_source_digest()} {name} {audited} {json.dumps(canonical_form(dict(sliders)))}"
    return folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _read_portrait(path: Path, name: str) -> Portrait | None:
    """Return the portrait in a file, or None, with a message if there is one that is damaged.

    The file is data that somebody else may have written. It names no other file, and has all that is read of it.
    """
    try:
        entry = parse_json(read_bytes(path))
        value, expected = entry["portrait"], entry["digest"]
        if digest(value) == expected and value["name"] == name:
            hints = get_type_hints(Portrait)
            if all(has_type(value[key], kind) for key, kind in hints.items()):
                return Portrait(**value)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    print(f"--cache: {path} does not have what was written; it is made again", file=sys.stderr)
    return None


def _make(name: str, sliders: Mapping[str, tuple[Any, ...]], audited: bool) -> Portrait:
    """Return a portrait that is made now."""
    leaf = _leaf(name)
    subject = AuditedEncoding(name, instantiate(leaf))
    target, maker = leaf._target_, unwrap(get_object(leaf._target_))
    kind: Any = maker if isinstance(maker, type) else type(subject.model().encodings[0])
    properties, reasons = ({}, {}) if audited else measure_properties(subject)
    return Portrait(
        name=name,
        target=target,
        family=_family(kind),
        module=kind.__module__,
        code=getsource(kind),
        options={
            key: value for key, value in config.flatten_settings(config.resolve_config(leaf)).items() if key[0] != "_"
        },
        causal_only=bool(subject.causal_only),
        on_grid=subject.on_grid,
        reads_marks=kind.reads_marks,
        fused=_unsupported_terms(subject),
        properties=properties,
        reasons=reasons,
        curves=curves(subject, sliders),
        picture=_draw_picture(subject),
    )


def _draw_picture(subject: AuditedEncoding) -> str:
    """Return the picture of an encoding as SVG, in places that are fixed: to find them takes longer than to draw."""
    with mpl.rc_context(STYLE | {"font.size": 12, "axes.titlesize": 12}):
        figure = draw_picture(subject, _none(), layout=None)
        figure.subplots_adjust(**PLACES)
        return svg(figure, f"picture-{subject.name}")  # "none" alone would be no salt


def _leaf(name: str) -> DictConfig:
    """Return the settings of an encoding; those that consist of others are composed, which takes longer."""
    leaf = OmegaConf.load(config.config_folder() / "pe" / f"{name}.yaml")
    assert isinstance(leaf, DictConfig)
    if not {"defaults", "parts"} & set(leaf):
        return leaf
    (cfg,) = config.expand_overrides([f"pe={name}"], multirun=False)
    composed: DictConfig = cfg.pe
    return composed


def _family(kind: type) -> str:
    """Return the first line of the docstring of a class's module."""
    if kind.__module__ == "pe_lab.encodings.base":
        return "No encoding"
    return str(__import__(kind.__module__, fromlist=["_"]).__doc__).strip().splitlines()[0].rstrip(".")


def _unsupported_terms(subject: AuditedEncoding) -> str:
    """Return what of an encoding the Triton kernels have no place for; empty: nothing."""
    views = subject.views(random_vectors(LENGTH).float())
    with _interpret_kernels():
        reasons = [triton.refusal_reason(view.q, view.terms, view.layout) or "" for view in views]
    return next((reason for reason in reasons if reason and not any(word in reason for word in OF_DEVICES)), "")


@contextmanager
def _interpret_kernels() -> Iterator[None]:
    """Let the kernels answer for the CPU, as in Triton's interpreter; nothing is run."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: their number changes rounding."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _none() -> AuditedEncoding:
    return AuditedEncoding.of("none")


@cache
def _source_digest() -> str:
    """Return a hash of what portraits depend on: code, configuration of encodings, version of torch."""
    total = hashlib.sha256(torch.__version__.encode())
    files = [path for part in READ for path in (PACKAGE.glob(part) if "*" in part else [PACKAGE / part])]
    files = [file for path in files for file in ([path] if path.is_file() else path.rglob("*.py"))]
    for path in sorted(
        [
            Path(__file__),
            Path(__file__).with_name("kernels.py"),
            *files,
            *(config.config_folder() / "pe").glob("*.yaml"),
        ]
    ):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()
