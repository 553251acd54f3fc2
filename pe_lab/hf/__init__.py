"""Positional encodings in models of Hugging Face transformers: `replace` puts one in the place of the model's own."""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ModuleNotFoundError('pe_lab.hf needs transformers: pip install "pe_lab[hf]"', name="transformers")

from pe_lab.hf.auto import register_types
from pe_lab.hf.loading import load
from pe_lab.hf.replacement import replace, stacks
from pe_lab.hf.training import EncodingCallback, parameter_groups

register_types()

__all__ = ["EncodingCallback", "load", "parameter_groups", "replace", "stacks"]
