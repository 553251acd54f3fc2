"""Make the encodings of conf/pe without hydra, and the terms that they give to attention."""

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
import yaml

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.stack import Stack
from pe_lab.encodings.terms import Terms
from pe_lab.system.names import unknown_name_message


def presets(configs: Path, names: list[str] | None = None) -> dict[str, Callable[[Sizes], PositionalEncoding]]:
    """Return constructors of encodings by name, `none` first.

    Args:
        configs: the folder conf/pe.
        names: encodings to return; none: all whose config is one class and its options (others are made of these).

    Raises:
        ValueError: there is no such encoding.
    """
    options = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(configs.glob("*.yaml"))}
    single = [name for name in options if not {"defaults", "parts"} & options[name].keys()]
    known = sorted(single, key=lambda name: name != "none")
    for name in names or ():
        if name not in known:
            raise ValueError(unknown_name_message("pe", known, name))
    return {name: _constructor(options[name]) for name in names or known}


def _constructor(options: dict[str, Any]) -> Callable[[Sizes], PositionalEncoding]:
    """Return a function that makes the encoding of a config for given sizes."""
    encoding = resolve_name(options["_target_"])
    plain = {key: value for key, value in options.items() if not key.startswith("_")}
    return lambda sizes: encoding(sizes, **plain)


def terms_of(
    make: Callable[[Sizes], PositionalEncoding],
    batch: int,
    length: int,
    heads: int,
    head_dim: int,
    device: torch.device,
) -> tuple[Terms, Layout]:
    """Return an untrained encoding's terms for random tokens under a causal mask, and their layout.

    Raises:
        ValueError: the encoding is not defined for such sequences.
    """
    layout = Layout.of_lengths(torch.full((batch,), length, device=device), length, causal=True)
    encoding = make(Sizes(heads * head_dim, heads, length)).to(device)
    torch.manual_seed(0)
    for module in encoding.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
    h = torch.randn(batch, length, heads * head_dim, device=device)
    _, _, terms, layout = Stack([encoding], 1)(h, layout)[1].layer(0, h)
    return terms, layout
