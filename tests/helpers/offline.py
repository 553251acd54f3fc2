"""Read an offline W&B run's file with what every supported wandb has: `wandb leet` is new, `wandb.sdk.internal` gone.

The file is a log as LevelDB writes it, after a header of its own: blocks of 32 KiB, in which each part of a record has
a checksum, its length and whether it is the whole, the first, a middle or the last part.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from wandb.proto.wandb_internal_pb2 import Record

HEADER = 7  # bytes, of the file and of each part
BLOCK = 32768
WHOLE, LAST = 1, 4


def contents(path: Path) -> dict[str, list[dict]]:
    """Return the records of a .wandb file by kind, those of one kind in their order."""
    found: dict[str, list[dict]] = {}
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        found.setdefault(kind, []).append(
            _plain(MessageToDict(getattr(record, kind), preserving_proto_field_name=True))
        )
        if kind == "exit":
            found[kind][-1].setdefault("exit_code", 0)  # zeros are left out
    return found


def _records(data: bytes) -> Iterator[bytes]:
    at, record = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # nothing but zeros
            at += left
            continue
        length, part = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        at += HEADER + length
        record += data[at - length : at]
        if part in (WHOLE, LAST):
            yield record
            record = b""


def _plain(value: dict) -> dict:
    """Return a message with each of its lists of keys and JSON as a dictionary."""

    def plain(inner: object) -> object:
        if isinstance(inner, dict):
            return _plain(inner)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict) and "value_json" in inner[0]:
            return {
                item.get("key") or ".".join(item["nested_key"]): json.loads(item["value_json"], parse_constant=str)
                for item in inner
            }
        return inner

    return {name: plain(inner) for name, inner in value.items()}
