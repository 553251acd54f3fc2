"""Check encodings and datasets against their contracts: pe-lab check pe=NAME, or data=NAME.

`encodings.PROMISES`, `models.PROMISES` and `datasets.PROMISES` map a sentence to the function that checks it. To add a
promise, write the function and add a line to one of them: the program and the contract tests find it there.
"""
