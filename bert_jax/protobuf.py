"""Reads protocol buffers without their generated classes."""

from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet


def read_message(message: bytes) -> dict[int, list]:
    """The values of a protocol buffer by field number. Nested messages are bytes."""
    fields: dict[int, list] = {}
    # An empty message type keeps every field that it parses as an unknown field.
    for field in UnknownFieldSet(Empty.FromString(message)):
        fields.setdefault(field.field_number, []).append(field.data)
    return fields


def last_value(fields: dict[int, list], number: int, default: Any = 0) -> Any:
    """The last value of a field. Protocol buffers leave out default values."""
    return fields[number][-1] if number in fields else default
