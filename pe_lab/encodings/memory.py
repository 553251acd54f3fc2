"""What one layer of a model stores of earlier tokens while it decodes, and what it hands to the next layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

MIN_SPARE_TOKENS = 64  # the least number of tokens by which a buffer grows


@dataclass
class GrowingTensor:
    """A tensor that grows along one axis, at the start of a larger buffer."""

    buffer: Tensor
    axis: int
    length: int

    def all(self) -> Tensor:
        """Return the tensor, a view of the buffer."""
        return self.buffer.narrow(self.axis, 0, self.length)


@dataclass(eq=False)
class Carried:
    """Vectors of tokens that a layer's attention averages like its values, and hands to the next layer.

    Args:
        vectors: [B|1, H|1, S, n] vectors of all keys.
        mixed: [B, H, T, n] sums of the vectors by the weights of each query; set by `attend`.
    """

    vectors: Tensor
    mixed: Tensor | None = None


class Memory:
    """Tensors of earlier tokens by name: keys, values, and what an encoding needs.

    A tensor is copied when its buffer is full, which then grows by half: decoding a token costs no copy of all others.
    One that was made in torch.inference_mode is copied once outside of it, where torch refuses to write into it.

    Args:
        tensors: the stored tensors, by name; None: there are none.
        prefix: a prefix of the names.
        room: the number of tokens for which a new buffer has room; None: the present number, and some more.
    """

    def __init__(
        self, tensors: dict[str, GrowingTensor] | None = None, prefix: str = "", room: int | None = None
    ) -> None:
        self.tensors = {} if tensors is None else tensors
        self.prefix, self.room = prefix, room

    def part(self, name: str) -> "Memory":
        """Return the memory of a part, with names separate from those of other parts."""
        return Memory(self.tensors, f"{self.prefix}{name}.", self.room)

    def extend(self, name: str, x: Tensor, axis: int, total: int) -> Tensor:
        """Append x to the tensor of this name and return the whole.

        Args:
            axis: the axis of the tokens.
            total: the number of tokens after x is appended.

        Returns:
            A view, valid until the next call.

        Raises:
            ValueError: what is kept does not fit: another batch, dtype or device, or a pass that did not finish.
        """
        name = self.prefix + name
        entry = self.tensors.get(name)
        length = entry.length if entry else 0
        if length + x.shape[axis] != total:
            raise ValueError(
                f"the cache must hold {name} of {total - x.shape[axis]} tokens, got {length}: an earlier pass did not "
                f"finish; begin with a new cache"
            )
        if entry is None:
            room = total + MIN_SPARE_TOKENS if self.room is None else max(total, self.room)
            entry = self.tensors[name] = GrowingTensor(x.new_empty(_sizes(x, axis, room)), axis, 0)
        buffer = entry.buffer
        if (x.dtype, x.device) != (buffer.dtype, buffer.device) or _sizes(x, axis, 0) != _sizes(buffer, axis, 0):
            raise ValueError(
                f"the cache must hold {name} like that of the new tokens, {x.dtype} {list(x.shape)} on {x.device}, got "
                f"{buffer.dtype} {list(entry.all().shape)} on {buffer.device}"
            )
        if buffer.shape[axis] < total or (buffer.is_inference() and not torch.is_inference_mode_enabled()):
            room = max(self.room or 0, total)
            room = room if room > total else total + max(MIN_SPARE_TOKENS, total // 2)
            grown = buffer.new_empty(_sizes(x, axis, room))
            grown.narrow(axis, 0, length).copy_(entry.all())
            entry.buffer = grown
        entry.buffer.narrow(axis, length, x.shape[axis]).copy_(x)
        entry.length = total
        return entry.all()

    def select(self, rows: Tensor) -> None:
        """Keep the rows of the batch with these indices [N], in this order; repeats are allowed."""
        for entry in self.tensors.values():
            entry.buffer = entry.buffer.index_select(0, rows)


def _sizes(x: Tensor, axis: int, length: int) -> torch.Size:
    return torch.Size((*x.shape[:axis], length, *x.shape[axis + 1 :]))
