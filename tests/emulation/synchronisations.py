"""Count what would make the host wait for the device, or copy between them, if all tensors were on a device."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {  # the result's value or shape is needed on the host
    "_local_scalar_dense": "item() or bool()",
    "is_nonzero": "bool()",
    "equal": "torch.equal",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "_unique": "unique",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "bincount": "bincount",
    "repeat_interleave": "repeat_interleave",
    "lift_fresh": "a tensor of Python numbers",
    "lift_fresh_copy": "a tensor of Python numbers",
}
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Synchronisations(TorchDispatchMode):
    """Count synchronisations while it is entered, operators of the package included.

    A tensor made of Python numbers counts: it is copied from the host, and that waits. Tensors of a CPU stand for those
    of a device; where there are both, copies between them count as well.

    Attributes:
        counts: by what synchronises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """How many there were."""
        return self.counts.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in OPDEFS:  # look into operators that are written in Python
            with self:
                return OPDEFS[name]._init_fn(*args, **kwargs)
        short = name.partition("::")[2]
        if short in WAITS:
            self.counts[WAITS[short]] += 1
        elif short in INDEXES and any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
            self.counts["a mask as an index"] += 1
        result = func(*args, **kwargs)
        if short in ("_to_copy", "copy_") and _moved(args, result):
            self.counts["a copy between devices"] += 1
        return result


def _moved(args: tuple[Any, ...], result: Any) -> bool:
    """Return whether a copy has its source and its result on different devices."""
    source = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else args[0]
    return isinstance(source, Tensor) and source.device != result.device
