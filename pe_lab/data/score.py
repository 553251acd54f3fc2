"""The score of a loss: 0 at the best loss without position, 1 at the best possible loss."""

from collections.abc import Mapping

BEST_FLOOR = "bayes"
LEVEL_FLOORS = ("position_blind", "prior")  # floors that a score can count from, the most informative first
BLIND_FLOORS = (
    "position_blind_split_known",
    "position_blind",
)  # losses that no model without position can beat, first known
NO_GAP = 1e-9  # nats between the position-blind and the best loss, below which a task does not need position


def score(loss: float, level: float, best: float) -> float:
    """Return (level - loss) / (level - best): 1 is the best possible, 0 no better than the level.

    It is negative for a model that is worse than the level, as many are beyond the lengths of training.
    """
    return (level - loss) / (level - best)


def uses_position(loss: float, floors: Mapping[str, Mapping[str, float]]) -> bool | None:
    """Return whether a test loss is below the best without position; None where that is unknown or equals the best.

    Args:
        loss: the test loss in nats.
        floors: the values of metrics by name, for each floor by name.
    """
    level = next((floors[name]["loss"] for name in BLIND_FLOORS if name in floors), None)
    if level is None or level - floors.get(BEST_FLOOR, {}).get("loss", 0.0) <= NO_GAP:
        return None
    return loss < level


def exact_range(floors: Mapping[str, Mapping[str, float]]) -> tuple[float, float] | None:
    """Return the level and the best loss of a task with exact floors, in nats; None where they are not known.

    Args:
        floors: the values of metrics by name, for each floor by name.
    """
    level = next((floors[name]["loss"] for name in LEVEL_FLOORS if name in floors), None)
    best = floors.get(BEST_FLOOR, {}).get("loss")
    return None if level is None or best is None or level - best <= NO_GAP else (level, best)
