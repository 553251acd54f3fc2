"""Positional encodings in models of Hugging Face transformers: `replace` puts one in the place of the model's own.

Needs the extra: pip install "pe_lab[hf]".
"""

from pe_lab.hf.loading import load
from pe_lab.hf.replacement import replace, stacks

__all__ = ["load", "replace", "stacks"]
