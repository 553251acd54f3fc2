"""Tables with an entry for each distance: of the 2R + 1 entries, R + i - j is for query i and key j."""

import torch
from torch import Tensor


def table_distances(reach: int, device: torch.device) -> Tensor:
    """Return the distances -R ... R that a table of reach R covers, [2R+1]."""
    return torch.arange(-reach, reach + 1, device=device)


def table_index(distance: Tensor, reach: int) -> Tensor:
    """Return the index of integer distances in a table of reach R; beyond R, that of its ends."""
    return distance.clamp(-reach, reach) + reach


def table_lookup(table: Tensor, distance: Tensor, trailing: int = 0) -> Tensor:
    """Return the entries of a table for distances, [B|1, H|1, T, S, ...]; beyond R, those of its ends.

    Args:
        table: [1|H, 2R+1, ...], or [B|1, 1|H, 2R+1, ...].
        distance: [B|1, T, S] integers.
        trailing: the number of axes of the table after the distance.
    """
    index = table_index(distance, table.shape[-1 - trailing] // 2)
    if table.dim() == 2 + trailing:
        if len(table) == 1:
            return table[0][index][:, None]  # the gradient of the first axis is several times faster
        return table[:, index].transpose(0, 1)
    sequence = torch.arange(len(table), device=table.device)[:, None, None]
    return table.transpose(0, 1)[:, sequence, index].transpose(0, 1)
