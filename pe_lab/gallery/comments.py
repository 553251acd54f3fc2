"""What a choice of the configuration is, as its file says."""

from pe_lab import config


def comment(group: str, name: str) -> str:
    """Return the first comment of a file in conf, as a sentence: docs/encodings.md and docs/tasks.md have it too."""
    lines = (config.folder() / group / f"{name}.yaml").read_text().splitlines()
    first = next(line for line in lines if line.startswith("# ") and not line.startswith("# @"))
    return f"{first.removeprefix('# ').removesuffix('.')}."
