"""Curves of encodings: the mean score of two equal tokens against their distance, for each value of some options."""

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any, TypedDict

from pe_lab.audit.audited_encoding import AuditedEncoding, equal_tokens
from pe_lab.audit.measures import scores_by_distance
from pe_lab.encodings.terms import Stick

DIGITS = 4  # significant digits of a score


class Slider(TypedDict):
    """An option with its values, and the index of the default among them."""

    name: str
    values: list[Any]
    default: int


class Curves(TypedDict):
    """A curve per head for each combination of values.

    Attributes:
        quantity: what the score is, in words.
        unit: logit or weight. Logits are relative to that at distance 0.
        distances: [n].
        curves: by the indices of the values, as "0,2" ("" without sliders), a list of n scores for each head, or a text
            that says why there is none.
    """

    sliders: list[Slider]
    quantity: str
    unit: str
    distances: list[int]
    curves: dict[str, list[list[float]] | str]


def curves(subject: AuditedEncoding, sliders: Mapping[str, tuple[Any, ...]]) -> Curves:
    """Return a curve per head for each combination of values.

    Args:
        subject: the encoding with the options of conf/pe.
        sliders: options with their values, the default among them; may be empty.
    """
    listed = [_slider(subject, name, values) for name, values in sliders.items()]
    stick = isinstance(subject.view(equal_tokens(2)).terms.normalizer, Stick)
    by_indices: dict[str, list[list[float]] | str] = {}
    distances: list[int] = []
    for indices in product(*(range(len(slider["values"])) for slider in listed)):
        chosen = {slider["name"]: slider["values"][index] for slider, index in zip(listed, indices, strict=True)}
        key = ",".join(map(str, indices))
        try:
            distances, by_indices[key] = _curve(_with(subject, chosen), relative=not stick)
        except ValueError as error:
            by_indices[key] = str(error)
    quantity = "attention weight" if stick else "logit, less that at distance 0"
    unit = "weight" if stick else "logit"
    return {"sliders": listed, "quantity": quantity, "unit": unit, "distances": distances, "curves": by_indices}


def _slider(subject: AuditedEncoding, name: str, values: tuple[Any, ...]) -> Slider:
    """Return an option with its values and the index of its default."""
    default = getattr(subject.make, "keywords", {}).get(name)
    if default not in values:
        raise ValueError(f"values of {subject.name}.{name} must have the default {default}, got {list(values)}")
    return {"name": name, "values": list(values), "default": list(values).index(default)}


def _with(subject: AuditedEncoding, options: Mapping[str, Any]) -> AuditedEncoding:
    """Return the subject with other options."""
    make = subject.make
    assert isinstance(make, partial)  # that is what Hydra makes of conf/pe
    return AuditedEncoding(subject.name, partial(make.func, *make.args, **{**make.keywords, **options}))


def _curve(subject: AuditedEncoding, relative: bool) -> tuple[list[int], list[list[float]]]:
    """Return distances, and the scores of each head at each; `relative`: less that at distance 0."""
    distances, scores = scores_by_distance(subject)
    if relative:
        scores = scores - scores[:, :1]
    rounded = [[float(f"{value:.{DIGITS}g}") for value in head] for head in scores.tolist()]
    return distances.tolist(), rounded
