"""Whether token and position interfere: the angles between their subspaces, and the effect of shifted positions."""

import numpy as np
import torch
from scipy.linalg import subspace_angles
from torch import Tensor

from pe_lab.data.base import Dataset
from pe_lab.data.seeding import derive_seed
from pe_lab.model import Transformer
from pe_lab.probes.base import Probe, ProbeRow, make_row
from pe_lab.probes.hidden_states import HiddenStates, capture_states, permute_tokens

EXPLAINED_SHARE = 0.9  # share of the variance that the directions of a subspace carry
MIN_POSITION_SHARE = 1e-12  # share of the variance below which there is no position; float32 rounding has 1e-14
NUM_DRAWS = 16  # pairs of random subspaces


class SubspaceProbe(Probe):
    """Splits hidden states of the test split into a part of the token and a part of the position.

    State = mean + part of the token + part of the position + rest, by least squares. Both parts are fitted together,
    because a token that prefers certain positions would otherwise be confused with them. Tokens that occur at one
    position only, and positions that hold one token only, are left out: their parts cannot be separated. At layer 0 the
    parts are exactly the token embedding and what an absolute encoding adds to it. A subspace is spanned by the fewest
    principal directions of a part (one vector per token, or per position) that carry EXPLAINED_SHARE of its variance.

    Rows, for layers 0 ... depth:
        token_share, position_share: variance of each part over that of the state, >= 0. With the rest they need not
            sum to 1, because the parts may be correlated.
        position_share_permuted: the same with positions permuted among the tokens of each sequence: chance. Where
            position_share is not above it, directions and angles are noise.
        token_dimensions, position_dimensions: dimensions of the subspaces.
        smallest_angle: smallest principal angle between the subspaces, in degrees, from 0 (a shared direction) to 90
            (orthogonal); scipy.linalg.subspace_angles.
        mean_cosine: mean cosine of all principal angles, from 0 (orthogonal) to 1 (one subspace contains the other).
        smallest_angle_random, mean_cosine_random: the same for random subspaces of these dimensions, mean of NUM_DRAWS:
            large subspaces are close to each other by chance. Between small ones the smallest angle varies much, the
            cosine little.
        moved_by_1, moved_by_length: norm of the change of the states over the norm of the states when all positions
            are shifted by one or by the training length (on a grid, by one row or by its height) and the tokens stay.
            0: no change, 1.41: states of equal norm that are orthogonal to the first ones.

    Where no part of the state depends on position, as at layer 0 without an encoding that adds there, dimensions and
    angles have no rows; where all states are equal, shares have none; where the encoding does not have the shifted
    positions, moved_by_* has none.
    """

    def __call__(self, model: Transformer, dataset: Dataset, seed: int) -> list[ProbeRow]:
        states = capture_states(model, dataset, "test", seed)
        rows = _parts(states, seed)
        task = dataset.task
        for name, offset in (("1", 1), ("length", task.length // (task.grid_width or 1))):
            try:
                shifted = capture_states(model, dataset, "test", seed, offset)
            except ValueError:  # the encoding does not have the shifted positions: the same sequences ran above
                continue
            for layer, (before, after) in enumerate(zip(states.hidden, shifted.hidden, strict=True)):
                before, after = before.double(), after.double()
                rows.append(make_row(f"moved_by_{name}", ((after - before).norm() / before.norm()).item(), layer))
        return rows


def _parts(states: HiddenStates, seed: int) -> list[ProbeRow]:
    """Return all rows except those of shifted positions."""
    tokens, positions = states.tokens, states.pos.unique(dim=0, return_inverse=True)[1]
    comparable = comparable_tokens(tokens, positions)
    if not comparable.any():
        return []
    tokens, positions = (ids[comparable].unique(return_inverse=True)[1] for ids in (tokens, positions))
    permuted = permute_tokens(positions, states.sequence[comparable], seed)
    rows = []
    for layer, hidden in enumerate(states.hidden):
        hidden = hidden[comparable].double()
        total = _variance(hidden)
        if not total > MIN_POSITION_SHARE * hidden.square().mean():
            continue
        token, position = split_states(hidden, tokens, positions)
        chance = split_states(hidden, tokens, permuted)[1]
        token_share, position_share, chance_share = (
            (_variance(part[ids]) / total).item()
            for part, ids in ((token, tokens), (position, positions), (chance, permuted))
        )
        rows += [
            make_row("token_share", token_share, layer),
            make_row("position_share", position_share, layer),
            make_row("position_share_permuted", chance_share, layer),
        ]
        if min(token_share, position_share) > MIN_POSITION_SHARE:
            draw = np.random.default_rng(derive_seed(seed, "probe", "subspaces", layer))
            rows += _angles(principal_directions(token), principal_directions(position), layer, draw)
    return rows


def comparable_tokens(tokens: Tensor, positions: Tensor) -> Tensor:
    """Return [N] bool: the tokens whose part can be separated from that of their position.

    Each token that is kept occurs at several kept positions, and each position that is kept holds several kept tokens.

    Args:
        tokens, positions: [N] the id of each token and of its position.
    """
    tokens, positions = (ids.unique(return_inverse=True)[1] for ids in (tokens, positions))
    kept = torch.ones_like(tokens, dtype=torch.bool)
    while True:
        pairs = torch.stack((tokens[kept], positions[kept])).unique(dim=1)
        several = [ids.bincount(minlength=len(tokens)) > 1 for ids in pairs]
        again = kept & several[0][tokens] & several[1][positions]
        if torch.equal(again, kept):
            return kept
        kept = again


def split_states(states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of each token and of each position: least squares of state = token's part + position's part.

    The tokens' parts are eliminated, so that the size of the linear system is the number of positions.

    Args:
        states: [N, D] hidden states, float64.
        tokens, positions: [N] ids from 0, each of which occurs.

    Returns:
        [tokens, D], which includes the mean, and [positions, D], whose mean is 0.
    """
    count = states.new_zeros(int(tokens.max()) + 1, int(positions.max()) + 1)
    count.index_put_((tokens, positions), states.new_ones(()), accumulate=True)
    by_token, by_position = (
        states.new_zeros(size, states.shape[1]).index_add_(0, ids, states)
        for size, ids in zip(count.shape, (tokens, positions), strict=True)
    )
    share = count / count.sum(1, keepdim=True)
    normal = count.sum(0).diag() - count.T @ share
    position = torch.linalg.pinv(normal, rtol=1e-10, hermitian=True) @ (by_position - share.T @ by_token)
    return by_token / count.sum(1, keepdim=True) - share @ position, position


def principal_directions(vectors: Tensor) -> Tensor:
    """Return [D, k], the fewest principal directions of vectors [rows, D] with EXPLAINED_SHARE of their variance."""
    _, singular, basis = torch.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    carried = singular.square().cumsum(0) / singular.square().sum()
    kept: Tensor = basis[: int((carried < EXPLAINED_SHARE - 1e-9).sum()) + 1]
    return kept.T


def principal_angles(first: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the smallest principal angle in degrees, and the mean cosine of all, between two column spaces [D, k]."""
    radians = subspace_angles(first, other)
    return float(np.degrees(radians.min())), float(np.cos(radians).mean())


def _angles(token: Tensor, position: Tensor, layer: int, draw: np.random.Generator) -> list[ProbeRow]:
    """Return the rows of dimensions and angles of two bases [D, k]."""
    smallest, cosine = principal_angles(token.numpy(), position.numpy())
    drawn = [
        principal_angles(*(draw.standard_normal(basis.shape) for basis in (token, position))) for _ in range(NUM_DRAWS)
    ]
    smallest_random, cosine_random = np.mean(drawn, 0)
    values = {
        "token_dimensions": token.shape[1],
        "position_dimensions": position.shape[1],
        "smallest_angle": smallest,
        "mean_cosine": cosine,
        "smallest_angle_random": smallest_random,
        "mean_cosine_random": cosine_random,
    }
    return [make_row(metric, value, layer) for metric, value in values.items()]


def _variance(vectors: Tensor) -> Tensor:
    """Return the mean squared distance of vectors [N, D] from their mean."""
    return (vectors - vectors.mean(0)).square().sum(-1).mean()
