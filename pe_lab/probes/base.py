"""The contract of a probe."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

from hydra.utils import get_class

from pe_lab.data.base import Dataset
from pe_lab.model import Transformer


class ProbeRow(TypedDict):
    """One measured number.

    Args:
        layer: the number of the layer, 0 ... depth; None: the model as a whole.
        head: the number of the head in the layer, from 0; None: all heads.
        metric, value: the name of the metric and its value, a finite number.
    """

    layer: int | None
    head: int | None
    metric: str
    value: float


def make_row(metric: str, value: float, layer: int | None = None, head: int | None = None) -> ProbeRow:
    """Return a row with a finite number.

    Raises:
        FloatingPointError: the number is not finite.
    """
    if not math.isfinite(value):
        raise FloatingPointError(f"probe must find finite numbers, got {metric}={value} in layer {layer}")
    return ProbeRow(layer=layer, head=head, metric=metric, value=float(value))


class Probe(ABC):
    """Measures a trained model.

    A probe does not train the model, and restores what it changes: modes, gradients and torch's global generators. It
    runs in the precision of the weights. Layer 0 is the state after the embedding, layer l the state after layer l.

    To add a probe, derive a class and write a file conf/probe/<name>.yaml that begins with `# @package probe.<name>`
    and has the class as `_target_`. Other settings in the file are arguments of the class.

    Attributes:
        revision: the version of the probe's numbers, raised when they change; part of a record's identity.
        neutral: options added later and their value that means "as before", as in PositionalEncoding.
    """

    revision: ClassVar[int] = 1
    neutral: ClassVar[dict[str, object]] = {}

    @classmethod  # noqa: B027 most probes read what every dataset has
    def require(cls, dataset: Dataset) -> None:
        """Raise ValueError if a dataset lacks what the probe reads. Called before anything is trained.

        Args:
            dataset: the dataset that the probe will read.
        """

    @abstractmethod
    def __call__(self, model: Transformer, dataset: Dataset, seed: int) -> list[ProbeRow]:
        """Return what was measured.

        Args:
            model: the trained model.
            dataset: the dataset that the model was trained on, maybe with a longer test split.
            seed: the seed of everything that is drawn at random.
        """


def probe_class(name: str, settings: Mapping[str, Any]) -> type[Probe]:
    """Return the class of a probe.

    Args:
        settings: the `_target_`, and arguments of the class.

    Raises:
        ValueError: the class is not a probe, or does not take these arguments.
    """
    kind = get_class(settings["_target_"])
    if not issubclass(kind, Probe):
        raise ValueError(f"probe.{name}._target_ must be a class derived from Probe, got {settings['_target_']}")
    try:
        inspect.signature(kind).bind(**{key: value for key, value in settings.items() if key[0] != "_"})
    except TypeError as error:
        raise ValueError(f"probe.{name} must have the arguments of {settings['_target_']}: {error}") from None
    return kind
