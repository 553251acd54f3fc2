"""Plain data: dicts with strings as keys, lists, strings, numbers, true, false and null.

Files that somebody else wrote are read as plain data: nothing is resolved, imported or called. Strings that a library
would act on are refused: interpolations (OmegaConf) and addresses of artifacts (W&B).
"""

import re
from collections.abc import Callable
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import yaml

from pe_lab.system.files import MAX_NESTING

MAX_BYTES = 2**18  # of a YAML file
MAX_VALUES = 10_000  # of a YAML file, each alias counted as what it stands for
# W&B would send the user's API key to the server in such an address
REFUSED_TEXTS = {"${": "no interpolation", "wandb-artifact:": "no address of an artifact"}
SCALAR_PATTERNS: list[tuple[re.Pattern[str], Callable[[str], Any]]] = [
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?(0|[1-9]\d*)", re.ASCII), int),
    (re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
]


def plain_data_error(value: Any) -> str | None:
    """Return why a value is not plain data, as "must have ..., got ...", or None if it is."""
    remaining: list[tuple[Any, str, int]] = [(value, "", 0)]  # values with their path and depth
    while remaining:
        part, key_path, depth = remaining.pop()
        if depth > MAX_NESTING:
            return f"must have at most {MAX_NESTING} levels, got more in {key_path[:MAX_NESTING]}"
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str):
                    return f"must have texts as keys, got {abbreviate(key)}{_key_in_words(key_path)}"
                if problem := _refused_requirement(key):
                    return f"must have {problem}, got the key {abbreviate(key)}{_key_in_words(key_path)}"
            remaining += [(inner, f"{key_path}.{key}" if key_path else key, depth + 1) for key, inner in part.items()]
        elif isinstance(part, list):
            remaining += [(inner, key_path, depth + 1) for inner in part]
        elif isinstance(part, str):
            if problem := _refused_requirement(part):
                return f"must have {problem}, got {abbreviate(part)}{_key_in_words(key_path)}"
        elif not isinstance(part, (int, float, type(None))):
            return f"must have numbers, texts, lists and dicts, got {abbreviate(part)}{_key_in_words(key_path)}"
    return None


def has_type(value: Any, kind: Any) -> bool:
    """Return whether plain data is of a type: a scalar, a TypedDict, a union, or a list or dict of these."""
    if kind is Any or type(value) is kind:
        return True
    if kind is float:
        return type(value) is int
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(has_type(value, kind) for kind in args)
    if origin is list:
        return isinstance(value, list) and (args[0] is Any or all(has_type(item, args[0]) for item in value))
    if origin is dict:  # its keys are texts
        return isinstance(value, dict) and (args[1] is Any or all(has_type(item, args[1]) for item in value.values()))
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        return (
            isinstance(value, dict)
            and value.keys() == hints.keys()
            and all(has_type(value[k], hints[k]) for k in hints)
        )
    return False


def _refused_requirement(text: str) -> str | None:
    return next((requirement for mark, requirement in REFUSED_TEXTS.items() if mark in text), None)


def abbreviate(value: Any) -> str:
    """Return a value as Python writes it, at most 100 characters of it."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]} ..."


def _key_in_words(key_path: str) -> str:
    return f" in {key_path}" if key_path else ""


def read_yaml(content: bytes) -> Any:
    """Read a YAML file as dicts, lists, strings and numbers. Reads back what OmegaConf writes.

    Strings may still be unsafe: check them with `plain_data_error`.

    Raises:
        ValueError: the content has tags, aliases, several documents or a repeated key, or is too large or too deep.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"must have at most {MAX_BYTES} bytes, got {len(content)}")
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
        raise ValueError(f"must be YAML, got {abbreviate(' '.join(str(error).split()))}") from None
    return tree


def require_small(content: bytes) -> None:
    """Check that a YAML file can be loaded soon, whatever its aliases stand for. Nothing is loaded.

    Raises:
        ValueError: the content is too large, too deep, has too many values, or is not YAML.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"must have at most {MAX_BYTES} bytes, got {len(content)}")
    counts, names = [0], [""]  # of values, by open level; the anchor of each
    anchors: dict[str, int] = {}
    try:
        for event in yaml.parse(content, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                if event.anchor not in anchors:
                    raise ValueError(f"must have no alias within what it stands for, got *{abbreviate(event.anchor)}")
                counts[-1] += anchors[event.anchor]
            elif isinstance(event, yaml.ScalarEvent):
                counts[-1] += 1
                anchors[event.anchor or ""] = 1
            elif isinstance(event, yaml.CollectionStartEvent):
                counts.append(1)
                names.append(event.anchor or "")
                anchors.pop(event.anchor or "", None)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchors[names.pop()] = counts[-1]
                counts[-2:] = [sum(counts[-2:])]
            if len(counts) > MAX_NESTING:
                raise ValueError(f"must have at most {MAX_NESTING} levels, got more")
            if counts[-1] > MAX_VALUES:
                raise ValueError(f"must have at most {MAX_VALUES:,} values with its aliases, got more")
    except yaml.YAMLError as error:
        raise ValueError(f"must be YAML: {' '.join(str(error).split())}") from None


def _tree(loader: yaml.SafeLoader, depth: int) -> Any:
    """Read the next value of a YAML stream."""
    event = loader.get_event()
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise ValueError(f"must have no aliases, got {abbreviate(event.anchor)}")
    if event.tag is not None:
        raise ValueError(f"must have no tags, got {abbreviate(event.tag)}")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if depth == MAX_NESTING:
        raise ValueError(f"must have at most {MAX_NESTING} levels, got more")
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
            raise ValueError(f"must have texts as keys, got {abbreviate(key)}")
        if key in tree or key == "<<":
            raise ValueError(f"must have each key once, and no merge, got {abbreviate(key)}")
        tree[key] = _tree(loader, depth + 1)
    loader.get_event()
    return tree


def _scalar(event: yaml.ScalarEvent) -> Any:
    """Convert a scalar: one in quotes is a string, another what it stands for."""
    if event.implicit[0]:
        for pattern, value in SCALAR_PATTERNS:
            if pattern.fullmatch(event.value):
                try:
                    return value(event.value)
                except ValueError:
                    raise ValueError(f"must have numbers that Python reads, got {abbreviate(event.value)}") from None
    return event.value
