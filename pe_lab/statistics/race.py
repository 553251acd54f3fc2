"""A race for the best few of many encodings, from significant comparisons."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

Arm = tuple[Any, str]  # an encoding in a setting


class Race:
    """Tracks in each setting which encodings are significantly among the best, and which are not.

    Args:
        settings: the encodings of each setting.
        places: how many encodings are to be left.
    """

    def __init__(self, settings: Mapping[tuple[Any, ...], Sequence[str]], places: int) -> None:
        self.settings = {setting: [(setting, pe) for pe in encodings] for setting, encodings in settings.items()}
        self.places = places
        self.better: dict[Arm, set[Arm]] = {cell: set() for cells in self.settings.values() for cell in cells}
        self.chosen: set[Arm] = set()
        self.dropped: set[Arm] = set()
        self.withdrawn: set[Arm] = set()

    def beats(self, cell: Arm, other: Arm) -> None:
        """Record that an encoding is significantly better than another."""
        self.better[other].add(cell)

    def withdraw(self, cell: Arm) -> None:
        """Remove an encoding whose cell failed from the race."""
        self.withdrawn.add(cell)

    def settle(self) -> None:
        """Drop encodings beaten by as many others as there are places, and choose those that are sure of a place.

        Beating is transitive: if A beats B and B beats C, A beats C. If comparisons of different looks contradict each
        other such that fewer encodings than places would be left, none is dropped.
        """
        for cells in self.settings.values():
            for between, cell in product(cells, cells):
                if between in self.better[cell]:
                    self.better[cell] |= self.better[between] - {cell}
            beaten_by_many = {cell for cell in cells if len(self.better[cell]) >= self.places}
            if len(self.dropped.union(beaten_by_many).intersection(cells)) <= len(cells) - self.places:
                self.dropped |= beaten_by_many
            running = [cell for cell in cells if cell not in self.withdrawn]
            left = [cell for cell in running if cell not in self.dropped]
            if len(running) < len(cells):  # an encoding that failed might have a place
                continue
            beaten = {cell: sum(cell in self.better[other] for other in cells) for cell in left}
            sure = len(left) <= self.places
            self.chosen |= {cell for cell in left if sure or beaten[cell] >= len(cells) - self.places}

    def settled(self, cell: Arm) -> bool:
        """Return whether an encoding's place is decided, either way."""
        return cell in self.chosen | self.dropped

    def contested(self, cell: Arm) -> bool:
        """Return whether an encoding is still in the race for a place."""
        return not self.settled(cell) and cell not in self.withdrawn

    def place(self, cell: Arm, compared: bool) -> str:
        """Describe the outcome for an encoding.

        Args:
            compared: whether it has comparisons that are still undecided.
        """
        many = f"the best {self.places}" if self.places > 1 else "the best"
        if cell in self.dropped:
            return f"not among {many}" if self.places > 1 else "not the best"
        if cell in self.withdrawn:
            return "undecided: a cell failed"
        if cell in self.chosen:
            return f"among {many}" if self.places > 1 else "the best"
        return "undecided" if compared else "tied for a place"
