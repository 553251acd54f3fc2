"""Formulas of the gallery, written in LaTeX: their braces, and what browsers show."""


def mathml(formula: str) -> str:
    """Return a LaTeX formula as a displayed <math> element.

    Raises:
        ModuleNotFoundError: latex2mathml is not installed.
        ValueError: latex2mathml cannot read the formula.
    """
    try:
        from latex2mathml.converter import convert
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "formulas are typeset by latex2mathml, which is not installed: pip install 'pe_lab[docs]'"
        ) from None
    try:
        return str(convert(formula, display="block"))
    except Exception as error:  # its errors have no base class of their own
        raise ValueError(f"a formula must be LaTeX that latex2mathml reads, got {formula} ({error!r})") from None


def has_balanced_braces(formula: str) -> bool:
    """Return whether the braces of a formula are balanced; those with a backslash are signs of the formula."""
    depth = 0
    for sign in formula.replace("\\\\", "").replace("\\{", "").replace("\\}", ""):
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return False
    return depth == 0
