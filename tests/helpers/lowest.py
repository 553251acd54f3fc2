"""Print the lowest versions that pyproject.toml allows, as constraints for pip.

Those of `dependencies` and of the extras that are named, without torch and triton: their lowest versions on PyPI are
gigabytes of CUDA, and `encodings` and `attention` are tested with the newest.
"""

import re
import sys
import tomllib
from pathlib import Path

UNCONSTRAINED = ("torch", "triton")


def lowest(extras: list[str]) -> list[str]:
    """Return a line `name==version` for each dependency that has a lower bound."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    bounds = [re.match(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)", line) for names in lists for line in names]
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound and bound[1] not in UNCONSTRAINED]


if __name__ == "__main__":
    print("\n".join(lowest(sys.argv[1:])))
