"""A laboratory for positional encodings in transformers.

`pe_lab.encodings` has the encodings and `pe_lab.attention` the function attend(); both can be used in any model. The
programs are `pe-lab run`, `pe-lab report` and others: see pe_lab.cli.
"""

__version__ = "0.1.0"
