"""The interface of a positional encoding: the places where position can enter a transformer.

Shapes here and in every encoding: B batch, T length, D width, H heads, d head_dim.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pe_lab.encodings.declarations import COMBINING_RULES, Declarations
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.options import CheckedOptions
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms


class UnfitError(ValueError):
    """Raised if an encoding is not defined for the sequences of a task."""


class MissingMarksError(UnfitError):
    """Raised if an encoding reads marks of tokens and a task has none."""


def at_least_float32(x: Tensor) -> torch.dtype:
    """Return the dtype of angles and biases for activations x: float64 if x is float64, otherwise float32."""
    return torch.promote_types(x.dtype, torch.float32)


class PositionalEncoding(Declarations, CheckedOptions, nn.Module):
    """No positional encoding (Haviv et al. 2022; NoPE, Kazemnejad et al. 2023, arXiv:2305.19466).

    Also the base class of all encodings: every hook leaves its input unchanged, and an encoding overrides one or two.
    Without any encoding a causal transformer still perceives positions; a bidirectional one does not.

    All parameters and buffers of an encoding are float32 or float64, also those of modules in it, and stay so when a
    model that contains it is cast to bfloat16 or float16, is made while such a dtype is torch's default, or gets such
    weights: frequencies, slopes and functions of positions mean nothing in 8 bits. Hooks compute in that precision,
    and return vectors in the dtype of the activations.

    Args:
        sizes: the sizes of the model.
        name: the file stem in conf/pe, used in messages.

    A class declares where it is defined, and what it reads, with the attributes of `Declarations`.

    Attributes:
        revision: the version number of its results, increased when they change; part of the identity of a result. A
            subclass that sets its own counts from its base's, `RoPE.revision + 1`, which raises it with that one.
        neutral: the options added later and their value that means "as before"; it is left out of the identity.
        fallback: the encoding that an error recommends where this one is not defined.
        start_scale: the option that is the size of its vectors at the start, beside the token embeddings or the input
            of attention to which they are added; None: it adds none.
        matrices: the names of parameters [..., m, n] that multiply vectors of n numbers, as weights of linear layers
            do; where n grows with the width of a model, their rates fall in the parametrization `mup`.
        weight_decay: whether weight decay applies to its parameters.
        lr: the learning rate of its parameters; None: that of the optimizer.
    """

    revision: ClassVar[int] = 1
    neutral: ClassVar[dict[str, object]] = {}
    start_scale: ClassVar[str | None] = None
    matrices: ClassVar[tuple[str, ...]] = ()
    float_positions = True
    fallback = "none"
    weight_decay = True
    lr: float | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # not inherited: a subclass that does not declare it may read positions in another way
        cls.float_positions = bool(vars(cls).get("float_positions", False))
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _in_float32(vars(cls)["__init__"]))  # noqa: B010 types do not assign to methods

    def __init__(self, sizes: Sizes, name: str = "none") -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_restore_float32)  # type: ignore[no-untyped-call]
        self.sizes = sizes
        self.name = name
        self._require_nature(sizes.causal, grid=sizes.grid_width is not None)
        self._require_marks(sizes.marks is not None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply a function to all parameters and buffers, as `to` and `bfloat16` do; none gets below float32."""

        def apply(x: Tensor) -> Tensor:
            result = fn(x)
            return x.to(result.device, torch.float32) if _is_low(result) else result

        return super()._apply(apply, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def _require_marks(self, marked: bool) -> None:
        if self.reads_marks and not marked:
            raise MissingMarksError(
                f"{self.name} needs marks of tokens, as the places of digits in data=addition, got none: use "
                f"{self.fallback}"
            )

    def _require_nature(self, causal: bool, grid: bool) -> None:
        if self.causal_only and not causal:
            raise UnfitError(
                f"{self.name} is defined for causal attention only, this is bidirectional: use {self.fallback}"
            )
        if self.on_grid and not grid:
            raise UnfitError(f"{self.name} needs positions on a grid, these sequences have none: use {self.fallback}")

    def _require_layout(self, layout: Layout) -> None:
        axes = tuple(layout.pos.shape[2:])
        if layout.pos.dim() < 2 or axes not in ((), (2,), *([(3,)] if self.three_axes else [])):
            three = ", or [B, T, 3] of time, row and column" if self.three_axes else ""
            raise ValueError(
                f"{self.name} takes positions [B, T], or [B, T, 2] on a grid{three}, got {list(layout.pos.shape)}"
            )
        if layout.pos.is_floating_point() and not (self.float_positions and (self.on_grid or axes != (2,))):
            raise ValueError(f"{self.name} takes integer positions{' on a grid' * len(axes)}, got {layout.pos.dtype}")
        self._require_nature(layout.causal, grid=axes == (2,))

    def require_contiguous(self, layout: Layout) -> None:
        """Raise ValueError if the encoding needs documents in one piece and a document is not.

        Args:
            layout: the layout of all tokens, including those in a cache.
        """
        if self.contiguous_only and not layout.contiguous:
            raise ValueError(
                f"{self.name} needs the tokens of a document next to each other, got a layout with padding or another "
                f"document between them: bring them together"
            )

    def inherit(self, parts: Sequence["PositionalEncoding"]) -> None:
        """Declare what holds for an encoding that is made of these; where its class says more than the default, that
        holds."""
        for name, rule in COMBINING_RULES.items():
            if getattr(self, name) == getattr(Declarations, name):
                setattr(self, name, rule(getattr(part, name) for part in parts))

    @property
    def embeds(self) -> bool:
        """Whether `embed` changes token embeddings."""
        return type(self).embed is not PositionalEncoding.embed

    @property
    def mixes(self) -> bool:
        """Whether `mix` changes the input of attention."""
        return type(self).mix is not PositionalEncoding.mix

    def reset_parameters(self) -> None:
        """Draw the parameters of this module, not of its children, from torch's global generator."""

    def fix_draws(self) -> None:
        """Take fixed numbers from now on in place of those that `locate` and other hooks draw.

        `pe-lab check` calls it before it compares layouts, each of which has draws of its own otherwise.
        """

    def constrain(self) -> None:
        """Move parameters back into their range; called after every optimizer step."""

    def advance(self, done: float) -> None:
        """Adapt to the progress of training, in [0, 1); called before every step.

        What it changes are parameters or buffers, in place: a checkpoint has them, and steps that are replayed as a
        CUDA graph read them. An attribute that is a Python number would keep its value in the graph.
        """

    def share_parameters(self, first: "PositionalEncoding") -> None:
        """Share parameters with the first layer's encoding; called once for every other layer."""

    def locate(self, layout: Layout) -> Layout:
        """Return the layout for all other hooks; called once per batch, on the first layer's encoding.

        Random draws happen here, from `layout.seed`.

        Raises:
            ValueError: the encoding is not defined for this layout.
        """
        self._require_layout(layout)
        self._require_marks(layout.marks is not None)
        if layout.pos.dim() == 2 or layout.pos.shape[-1] != 2 or self.on_grid:
            return layout
        row, column = layout.pos.unbind(-1)
        if self.sizes.grid_width is None:
            raise ValueError(f"{self.name} was built for sequences, got positions on a grid")
        outside = (column < 0) | (column >= self.sizes.grid_width)
        if self.reads_positions and (outside & (layout.segment != PADDING)).any():
            raise ValueError(
                f"{self.name} reads a grid of {self.sizes.grid_width} columns row by row: got a column outside of "
                f"it, whose position another token has"
            )
        return replace(layout, pos=row * self.sizes.grid_width + column)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        """Add position to token embeddings [B, T, D]; called once, before the first layer."""
        return x

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return the inputs of queries and keys, and of values, from a layer's attention input h [B, T, D].

        h is not changed in place. At padding its values mean nothing.
        """
        return h, h

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        """Return the terms of attention for a layer's attention input h [B, T, D], as in `mix`.

        With neither `reads_content` nor `per_layer`, layers that share the encoding share one call, whose h are the
        token embeddings after `embed`.
        """
        return Terms()


def _is_low(x: Tensor) -> bool:
    return x.is_floating_point() and x.dtype not in (torch.float32, torch.float64)


def _restore_float32(module: nn.Module, _keys: object) -> None:
    """Make float32 of weights in lower precision, which `load_state_dict(..., assign=True)` puts in place of ours."""
    module._apply(lambda x: x.float() if _is_low(x) else x)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make a dtype the default of torch for a while."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def _in_float32(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that makes tensors in float32 where torch's default dtype is lower."""

    @wraps(init)
    def init_in_float32(*args: Any, **options: Any) -> None:
        with default_dtype(torch.promote_types(torch.get_default_dtype(), torch.float32)):
            init(*args, **options)

    return init_in_float32
