"""Give each encoding of a study its own learning rate, searched before the study's own cells are trained."""

from itertools import islice

from omegaconf import DictConfig

from pe_lab.experiment.chosen_rates import write_rates
from pe_lab.experiment.rounds import Outcome, Round, Stage, cost_of
from pe_lab.experiment.searches import Search, searches_of


def fair_rates(cfgs: list[DictConfig], cost: dict[str, float] | None = None) -> Stage:
    """Search the learning rate of each encoding in each setting; return the cells with the rates that were chosen.

    All searches take their rungs together: a round has the cells of one rung of each.

    Args:
        cost: gets the core-seconds of each run of the searches, by its name.

    Raises:
        ValueError: see `searches_of`; all candidates of an encoding diverged.
        CellsMissingError: a cell of a search failed for another reason than a loss that is not finite.
    """
    cost = {} if cost is None else cost
    of_cells = searches_of(cfgs)
    searches, number = list(dict.fromkeys(of_cells)), 0
    taken: list[Outcome] = []
    while waiting := [search for search in searches if search.rung is not None]:
        number += 1
        parts = [search.cells() for search in waiting]
        cells = [cfg for part in parts for cfg in part]
        outcomes = yield Round(cells, _progress(number, searches, len(waiting), len(cells)))
        taken += outcomes
        rest = iter(outcomes)
        for search, part in zip(waiting, parts, strict=True):
            search.take(list(islice(rest, len(part))))
    cost.update(cost_of(taken))
    chosen = [search.chosen(cfg) for search, cfg in zip(of_cells, cfgs, strict=True)]
    write_rates(of_cells, chosen)
    return chosen


def _progress(number: int, searches: list[Search], waiting: int, cells: int) -> str:
    text = f"learning rates, round {number}: {cells} cells for {waiting} of {len(searches)} searches"
    if number > 1:
        return text
    epochs = sum(search.epochs for search in searches)
    return f"{text}; {epochs} epochs of training in all, and more where the best stands at the edge"
