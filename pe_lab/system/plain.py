"""Plain data: what may stand in a file that somebody else wrote, so that reading it does nothing but read.

Dicts with texts as keys, lists, texts, numbers, true, false and null. Nothing is resolved, imported or called, and no
text is there that a library would follow: OmegaConf an interpolation, W&B the address of an artifact.
"""

import re
from collections.abc import Callable
from typing import Any

import yaml

from pe_lab.system.files import DEEPEST

LARGEST = 2**18  # bytes of a YAML file
# W&B asks the server that stands in such a text, and shows it the user's API key
FOLLOWED = {"${": "no interpolation", "wandb-artifact:": "no address of an artifact"}
SCALARS: list[tuple[re.Pattern[str], Callable[[str], Any]]] = [
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?(0|[1-9]\d*)", re.ASCII), int),
    (re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
]


def complaint(value: Any) -> str | None:
    """What keeps a value from being plain data, as a requirement with what was found; None: it is plain."""
    rest: list[tuple[Any, str, int]] = [(value, "", 0)]
    while rest:
        part, place, depth = rest.pop()
        if depth > DEEPEST:
            return f"must have at most {DEEPEST} levels, got more in {place[:DEEPEST]}"
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str):
                    return f"must have texts as keys, got {_shown(key)}{_in(place)}"
                if found := _followed(key):
                    return f"must have {found}, got the key {_shown(key)}{_in(place)}"
            rest += [(inner, f"{place}.{key}" if place else key, depth + 1) for key, inner in part.items()]
        elif isinstance(part, list):
            rest += [(inner, place, depth + 1) for inner in part]
        elif isinstance(part, str):
            if found := _followed(part):
                return f"must have {found}, got {_shown(part)}{_in(place)}"
        elif not isinstance(part, (int, float, type(None))):
            return f"must have numbers, texts, lists and dicts, got {_shown(part)}{_in(place)}"
    return None


def _followed(text: str) -> str | None:
    return next((what for sign, what in FOLLOWED.items() if sign in text), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]} ..."


def _in(place: str) -> str:
    return f" in {place}" if place else ""


def read_yaml(content: bytes) -> Any:
    """A YAML file as dicts, lists, texts and numbers: without tags, aliases, and keys that stand there twice.

    What OmegaConf writes reads back as it was. Its texts may be anything: see `complaint`.

    Raises:
        ValueError: a requirement, and what was found.
    """
    if len(content) > LARGEST:
        raise ValueError(f"must have at most {LARGEST} bytes, got {len(content)}")
    try:
        loader = yaml.SafeLoader(content.decode())
        loader.get_event()  # the stream begins
        if loader.check_event(yaml.StreamEndEvent):
            return None
        loader.get_event()  # the document begins
        tree = _tree(loader, 0)
        loader.get_event()  # the document ends
        if not loader.check_event(yaml.StreamEndEvent):
            raise ValueError("must be one document, got several")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"must be YAML, got {_shown(' '.join(str(error).split()))}") from None
    return tree


def _tree(loader: yaml.SafeLoader, depth: int) -> Any:
    """The value that comes next."""
    event = loader.get_event()
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise ValueError(f"must have no aliases, got {_shown(event.anchor)}")
    if event.tag is not None:
        raise ValueError(f"must have no tags, got {_shown(event.tag)}")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if depth == DEEPEST:
        raise ValueError(f"must have at most {DEEPEST} levels, got more")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not loader.check_event(yaml.SequenceEndEvent):
            items.append(_tree(loader, depth + 1))
        loader.get_event()
        return items
    tree: dict[str, Any] = {}
    while not loader.check_event(yaml.MappingEndEvent):
        key = _tree(loader, depth + 1)
        if not isinstance(key, str):
            raise ValueError(f"must have texts as keys, got {_shown(key)}")
        if key in tree or key == "<<":
            raise ValueError(f"must have each key once, and no merge, got {_shown(key)}")
        tree[key] = _tree(loader, depth + 1)
    loader.get_event()
    return tree


def _scalar(event: yaml.ScalarEvent) -> Any:
    """The value of a text: of one without quotes, what it stands for."""
    if event.implicit[0]:
        for pattern, value in SCALARS:
            if pattern.fullmatch(event.value):
                try:
                    return value(event.value)
                except ValueError:
                    raise ValueError(f"must have numbers that Python reads, got {_shown(event.value)}") from None
    return event.value
