"""Fields of a file of the registry, each refused in one line where it is not what it must be.

`where` is the place in the file that an error names.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def require_finite(where: str, value: Any) -> float:
    """Return a value as a float; raise ValueError if it is no finite number."""
    if type(value) not in (int, float) or not np.isfinite(value):
        raise ValueError(f"{where} must be a number, a list of one for each seed, or mean, sd and seeds, got {value!r}")
    return float(value)


def require_mapping(where: str, what: str, value: Any) -> Mapping[Any, Any]:
    """Return a value; raise ValueError if it is no mapping or an empty one."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{where}: {what} must be a mapping, got {'nothing' if value is None else repr(value)}")
    return value


def require_keys(where: str, table: Mapping[Any, Any], keys: tuple[str, ...]) -> None:
    """Raise ValueError if a table has another key than these."""
    for key in table:
        if key not in keys:
            raise ValueError(f"{where} must have the keys {', '.join(keys)}, got {key!r}")


def require_text(where: str, key: str, value: Any) -> str:
    """Return a value; raise ValueError if it is no text or a blank one."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must have {key}, a text, got {'none' if value is None else repr(value)}")
    return value


def require_texts(where: str, key: str, value: Any) -> list[str]:
    """Return a value, [] for None; raise ValueError if it is no list of texts that are not blank."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where} must have {key} as a list of texts, got {value!r}")
    return [require_text(where, key, item) for item in value]


def require_number(where: str, key: str, value: Any) -> float:
    """Return a value as a float; raise ValueError if it is no finite number above 0."""
    if type(value) not in (int, float) or not 0 < value < np.inf:
        raise ValueError(f"{where} must have {key}, a number above 0, got {'none' if value is None else repr(value)}")
    return float(value)


def require_flag(where: str, key: str, value: Any) -> bool:
    """Return a value; raise ValueError if it is no bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{where} must have {key}, true or false, got {'none' if value is None else repr(value)}")
    return value


def require_list(where: str, value: Any) -> list[Any]:
    """Return a value; raise ValueError if it is no list or an empty one."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where} must be a list of values, got {value!r}")
    return value
