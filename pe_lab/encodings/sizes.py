"""The sizes of a model that an encoding may depend on."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model that an encoding may depend on.

    Args:
        width: the width of the model, D.
        num_heads: the number of heads, H; divides D, unless head_dim is given.
        length: the length of the training sequences, T.
        causal: whether attention is causal.
        grid_width: the number of columns of the grid that a sequence represents, read row by row; None: sequences are
            no grids.
        depth: the number of layers of the model.
        layer: the index of the layer for which the encoding is made, 0 ... depth - 1; 0 where layers share it.
        model_heads: the number of heads of the model, where the encoding is for `num_heads` of them; None: it is for
            all.
        marks: the largest mark of a token in training, see `Layout`; None: tokens are not marked.
        given_head_dim: the dimension of a head, d; None: D / H.

    Raises:
        ValueError: a size below 1, a width that the heads do not divide, or a layer that the model does not have.
    """

    width: int
    num_heads: int
    length: int
    causal: bool = True
    grid_width: int | None = None
    depth: int = field(default=1, kw_only=True)
    layer: int = field(default=0, kw_only=True)
    model_heads: int | None = field(default=None, kw_only=True)
    marks: int | None = field(default=None, kw_only=True)
    given_head_dim: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        grid_width = 1 if self.grid_width is None else self.grid_width
        head_dim = 1 if self.given_head_dim is None else self.given_head_dim
        if min(self.width, self.num_heads, self.length, grid_width, self.depth, self.heads_in_model, head_dim) < 1:
            raise ValueError(f"sizes must be at least 1, got {self}")
        if self.given_head_dim is None and self.width % self.heads_in_model:
            raise ValueError(
                f"width must be divisible by num_heads, got width={self.width}, num_heads={self.heads_in_model}"
            )
        if not 0 <= self.layer < self.depth:
            raise ValueError(f"layer must be one of 0 ... {self.depth - 1}, got {self.layer}")
        if self.num_heads > self.heads_in_model:
            raise ValueError(f"num_heads must be at most model_heads={self.model_heads}, got {self.num_heads}")

    @property
    def heads_in_model(self) -> int:
        return self.num_heads if self.model_heads is None else self.model_heads

    @property
    def heads_width(self) -> int:
        """The width of all `num_heads` heads together; D, unless the model has more heads or wider ones."""
        return self.num_heads * self.head_dim

    @property
    def head_dim(self) -> int:
        return self.width // self.heads_in_model if self.given_head_dim is None else self.given_head_dim

    @property
    def head_dim_source(self) -> str:
        """What head_dim follows from, as the end of a message; "" where it is given."""
        return f" (width={self.width}, num_heads={self.heads_in_model})" if self.given_head_dim is None else ""
