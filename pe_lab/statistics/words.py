"""The words for what is known of the difference of two cells, and what they say."""

BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
WITHIN = ", within the margin"
EQUAL, ONE_SEED, NO_SEED = "equal", "one seed", "no shared seed"
ALIKE = (EQUIVALENT, BETTER + WITHIN, WORSE + WITHIN, EQUAL)  # the difference is certainly too small to matter


def direction(verdict: str) -> str:
    """Return better or worse for a difference that is certain, whatever its size; otherwise an empty text."""
    word = verdict.removesuffix(WITHIN)
    return word if word in (BETTER, WORSE) else ""


def reverse(verdict: str) -> str:
    """Return the verdict on the same two encodings in the other order."""
    word = direction(verdict)
    return verdict.replace(word, WORSE if word == BETTER else BETTER) if word else verdict
