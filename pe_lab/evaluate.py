"""Measure trained cells, without training: pe-lab evaluate, with the overrides that pe_lab.run was given.

`evaluate.lengths=1,2,4 evaluate.policy=raw,yarn evaluate.offset=0,64 probe=position,rank` choose the measurements.
"""

from pe_lab import run


def main() -> None:
    """Measure the cells that the overrides name; a cell that is not in the ledger is an error."""
    run.main(train=False)


if __name__ == "__main__":
    main()
