"""The transformer that every encoding is put into.

B sequences, T tokens, H heads; D the width of the model, d = D / H the dimensions of a head.
"""

from pe_lab.model.transformer import Transformer

__all__ = ["Transformer"]
