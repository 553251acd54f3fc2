"""Encodings that rotate values too."""

from torch import Tensor

from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Positive
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary, Terms


class VORoPE(RoPE):
    """RoPE on values and on the result too (geometric transform attention, Miyato et al. 2024, arXiv:2310.10375).

    The value of key j is rotated by R_j as its key is, and the result of query i by the inverse of R_i, before heads
    are joined: o_i = sum over j of a_ij R_(j - i) v_j, so that the result depends on position through pos_j - pos_i
    only. One angle serves queries, keys, values and the result. Nothing is learned.

    Args:
        theta, pairing: the options of `RoPE`.
        queries_keys: whether queries and keys are rotated, as in the source; false: only values and the result are.

    Raises:
        ValueError: the cases of `RoPE`.
    """

    float_positions = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "vo_rope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        queries_keys: bool = True,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.queries_keys = queries_keys

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        rotary = self.rotation(h, layout)
        inverse = Rotary(rotary.cos, -rotary.sin, self.pairing)
        met = rotary if self.queries_keys else None
        return Terms(rotary_q=met, rotary_k=met, rotary_v=rotary, rotary_out=inverse)
