"""Tables with an entry for each distance."""

import pytest
import torch

from pe_lab.encodings.distance_table import table_distances, table_index, table_lookup

B, H, T, S, R, e = 2, 3, 4, 5, 2, 6
DISTANCE = torch.arange(T)[:, None] + torch.tensor([1, -3])[:, None, None] - torch.arange(S)  # from -7 to 4


@pytest.mark.parametrize("shape", [(1,), (H,), (1, 1), (1, H), (B, 1), (B, H)])
@pytest.mark.parametrize("trailing", [(), (e,)])
@pytest.mark.parametrize("sequences", [1, B])
def test_an_entry_is_that_of_the_distance_or_of_the_nearer_end(
    shape: tuple[int, ...], trailing: tuple[int, ...], sequences: int
) -> None:
    table = torch.randn(*shape, 2 * R + 1, *trailing, dtype=torch.float64, requires_grad=True)
    entries = table_lookup(table, DISTANCE[:sequences], len(trailing))
    by_sequence = (table if len(shape) == 2 else table[None]).expand(B, H, -1, *[-1] * len(trailing))
    expected = torch.stack(
        [
            by_sequence[b, h, R + max(-R, min(R, int(DISTANCE[b % sequences, i, j])))]
            for b in range(B)
            for h in range(H)
            for i in range(T)
            for j in range(S)
        ]
    ).view(B, H, T, S, *trailing)
    assert torch.equal(entries.expand_as(expected), expected)
    upstream = torch.randn_like(expected)
    gradients = [torch.autograd.grad(x, table, upstream)[0] for x in (entries.expand_as(expected), expected)]
    torch.testing.assert_close(*gradients, rtol=1e-13, atol=1e-13)


def test_distances_are_in_the_order_of_a_table() -> None:
    assert table_index(table_distances(R, torch.device("cpu")), R).tolist() == [0, 1, 2, 3, 4]
