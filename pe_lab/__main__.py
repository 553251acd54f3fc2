"""python -m pe_lab: the same as the console script pe-lab."""

from pe_lab.cli import main

if __name__ == "__main__":
    main()
