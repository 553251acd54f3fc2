"""A function that is computed again has its own values and gradients, and one node in the graph."""

import torch
from torch import Tensor

from pe_lab.encodings.recomputed import recompute


def product(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return torch.cat([part @ table[index].mT for part in x.split(2)]).exp()


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x, table = (torch.randn(n, 3, generator=source, dtype=torch.float64) for n in (6, 5))
    return x, table, torch.tensor([0, 4, 2])


def test_values_and_gradients_are_those_of_the_function() -> None:
    x, table, index = inputs()
    mine = [y.clone().requires_grad_() for y in (x, table)]
    expected = [y.clone().requires_grad_() for y in (x, table)]
    actual, reference = recompute(product, *mine, index), product(*expected, index)
    assert torch.equal(actual, reference)
    (actual * actual).sum().backward()
    (reference * reference).sum().backward()
    for one, other in zip(mine, expected, strict=True):
        assert torch.equal(one.grad, other.grad)


def test_an_input_without_gradients_gets_none() -> None:
    x, table, index = inputs()
    recompute(product, x, table.requires_grad_(), index).sum().backward()
    assert x.grad is None
    assert table.grad.abs().sum() > 0


def test_the_graph_is_one_node() -> None:
    x, table, index = inputs()
    result = recompute(product, x.requires_grad_(), table.requires_grad_(), index)
    leaves = [node for node, _ in result.grad_fn.next_functions if node is not None]
    assert [node.variable is y for node, y in zip(leaves, (x, table), strict=True)] == [True, True]


def test_without_gradients_nothing_is_kept() -> None:
    x, table, index = inputs()
    with torch.no_grad():
        assert recompute(product, x.requires_grad_(), table, index).grad_fn is None
