"""The encodings, a file for each family: what enters a model, as rotations, biases, added vectors or windows.

A file is also an attribute of `pe_lab.encodings`, so that `pe_lab.encodings.rotary.RoPE` in a YAML file is the class of
`rotary.py` here. The encoding `none` is in `pe_lab.encodings.base`; those made of others are in
`pe_lab.encodings.combine`.
"""
