"""Changes to protobuf messages that keep them messages: a field set, emptied, repeated, or at the edge of its type."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

EDGES = {
    Field.CPPTYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31), 64, 65),
    Field.CPPTYPE_INT64: (0, 1, -1, 2**63 - 1, -(2**63), 2**62, 2**62 + 1),
    Field.CPPTYPE_UINT32: (0, 1, 2, 63, 64, 65, 2**20, 2**20 + 1, 2**32 - 1),
    Field.CPPTYPE_UINT64: (0, 1, 2, 4096, 2**62, 2**62 + 1, 2**64 - 1),
    Field.CPPTYPE_FLOAT: (0.0, 1.0, -1.0, 0.5, 1.01, float("inf"), float("-inf"), float("nan"), 1e38),
    Field.CPPTYPE_DOUBLE: (0.0, 1.0, -1.0, 0.5, 1.01, float("inf"), float("nan"), 1e308),
    Field.CPPTYPE_BOOL: (True, False),
    Field.CPPTYPE_ENUM: (0, 1, 2, 3, 4, 5, 99, -1),
}
TEXTS = ("", "a", "llama-a", "a/1", " a", "x" * 256, "x" * 257, "x" * 1025, "\n", "\u202e", "é", "0")
MAX_ROWS = 40
OTHER_OF_ONEOF = 0.05


def change(message: Message, luck: random.Random, changes: int = 3) -> None:
    """Change a few fields somewhere in the message."""
    for _ in range(luck.randint(1, changes)):
        _change_one(message, luck)


def _change_one(message: Message, luck: random.Random) -> None:
    field = _field(message, luck)
    if field.is_repeated:
        _change_repeated(message, field, luck)
    elif field.message_type is not None:
        if luck.random() < 0.1:
            message.ClearField(field.name)
        else:
            _change_one(_present(message, field.name), luck)
    elif luck.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(field, luck))


def _field(message: Message, luck: random.Random) -> Field:
    """Any field; of those that exclude each other, mostly the one that is there."""
    kind: Any = message.DESCRIPTOR
    field: Field = luck.choice(kind.fields)
    if field.containing_oneof is None or luck.random() < OTHER_OF_ONEOF:
        return field
    there: Field = kind.fields_by_name.get(message.WhichOneof(field.containing_oneof.name), field)
    return there


def _change_repeated(message: Message, field: Field, luck: random.Random) -> None:
    values: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(values, field, luck)
    elif luck.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is not None:
        if not values or luck.random() < 0.3:
            values.add()
        _change_one(luck.choice(values), luck)
    elif not values or luck.random() < 0.3:
        values.extend([_value(field, luck)] * luck.choice((1, 1, 2, MAX_ROWS)))
    else:
        values[luck.randrange(len(values))] = _value(field, luck)


def _change_map(values: Any, field: Field, luck: random.Random) -> None:
    entry: Any = field.message_type
    key, value = entry.fields
    if luck.random() < 0.2:
        values.clear()
    elif value.message_type is None:
        values[_value(key, luck)] = _value(value, luck)


def _present(message: Message, name: str) -> Message:
    part: Message = getattr(message, name)
    part.SetInParent()
    return part


def _value(field: Field, luck: random.Random) -> Any:
    if field.cpp_type == Field.CPPTYPE_STRING:
        if field.type == Field.TYPE_BYTES:
            return luck.randbytes(luck.randrange(64))
        return luck.choice(TEXTS)
    if luck.random() < 0.5:
        return luck.choice(EDGES[field.cpp_type])
    return bool(luck.getrandbits(1)) if field.cpp_type == Field.CPPTYPE_BOOL else luck.randrange(16)
