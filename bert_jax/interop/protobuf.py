"""Protocol buffers without their schema: numbers and bytes by field number."""

import struct
from typing import Any


class FormatError(Exception):
    """The bytes are not what the format says; says how."""


def last(fields: dict[int, list], number: int, default: Any) -> Any:
    """The last value of a field; protocol buffers leave out what equals the default."""
    return fields[number][-1] if number in fields else default


def read_message(message: bytes) -> dict[int, list]:
    """Field number -> values of a protocol buffer, nested messages as bytes."""
    fields: dict[int, list] = {}
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        wire_type = tag & 7
        if wire_type == 0:
            value, position = read_varint(message, position)
        elif wire_type == 2:
            length, position = read_varint(message, position)
            value = message[position : position + length]
            position += length
        elif wire_type == 5:
            (value,) = struct.unpack_from("<I", message, position)
            position += 4
        else:
            raise FormatError(f"unknown wire type {wire_type}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """An integer of 7 bits a byte, low bits first, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
