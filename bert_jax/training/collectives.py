"""What a compiled program sends between devices, read from its HLO text."""

import dataclasses
import re
from collections import defaultdict

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_LINE = re.compile(
    rf"= (?P<result>\(.*?\)|\S+) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\("
)
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


@dataclasses.dataclass
class Traffic:
    """count: instructions; a scanned body's are counted once. bytes: of their results."""

    count: int = 0
    bytes: int = 0


def collectives(hlo: str) -> dict[str, Traffic]:
    """By kind, the collectives of a compiled module and the bytes of their results."""
    found: dict[str, Traffic] = defaultdict(Traffic)
    for match in _LINE.finditer(hlo):
        arrays = [_bytes(*a) for a in _ARRAY.findall(match["result"])]
        if match["start"] and match["kind"] in ("all-gather", "collective-permute"):
            # (operands, results, contexts): only the results.
            arrays = arrays[1:2]
        traffic = found[match["kind"]]
        traffic.count += 1
        traffic.bytes += sum(arrays)
    return dict(found)


def _bytes(dtype: str, dimensions: str) -> int:
    """Bytes of an array such as bf16[8,128]; a pred is a byte."""
    bits = _BITS.search(dtype)
    size = int(bits[0]) if bits else 8
    for dimension in filter(None, dimensions.split(",")):
        size *= int(dimension)
    return size // 8
