"""How long a step takes that was compiled for TPUs, from the compiled program alone.

The compiler writes a program (HLO) in the order in which a core runs it. Of each
instruction it says where its arrays lie (S(1): on the chip, else in memory) and how many
cycles its work in the matrix and vector units takes, by its own model. Here they are
played through on three resources: the core runs an instruction for the longer of its
cycles and of its bytes at the memory's bandwidth; copies in the background use the memory
meanwhile; what chips send each other uses their links. A wait for either is counted.

Without the cycles, and with matrix products at the unit's peak instead, this is what the
compiler itself estimates for v2 and v3, and for no later TPU. docs/performance.md compares
the two.
"""

import dataclasses
import math
import re
from collections import Counter
from typing import NamedTuple

import numpy as np

# bf16[8,512]{1,0:T(8,128)(2,1)S(1)}: dtype, sizes, dimensions from minor to major, tiles.
_ARRAY = re.compile(
    r"([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?"
)
_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%?(\S+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w-]+)\((.*)"
)
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.-]+) .*\{$")
_CALLED = re.compile(
    r"(?:calls|body|to_apply)=%?([\w.-]+)|branch_computations=\{([^}]*)\}"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# Instructions of an HLO module that send arrays between devices.
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_NO_WORK = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "opt-barrier",
    "partition-id",
}


class Array(NamedTuple):
    """An array of a program. padded: its bytes with those that fill its tiles."""

    dimensions: tuple[int, ...]
    bytes: int
    padded: int
    on_chip: bool


class Instruction(NamedTuple):
    """A line of a program. results: the arrays of its result, a tuple's one by one."""

    name: str
    op: str
    results: list[Array]
    operands: list[str]
    inner: str  # what stands between its brackets
    attributes: str

    @property
    def collective(self) -> str:
        """Which of COLLECTIVES it is, or begins; "" for none."""
        kind = self.op.removesuffix("-start")
        return kind if kind in COLLECTIVES else ""

    @property
    def received(self) -> int:
        """Bytes of a collective's results."""
        results = self.results
        if self.op in ("all-gather-start", "collective-permute-start"):
            results = results[1:2]  # of (operands, results, contexts)
        return sum(each.bytes for each in results)

    @property
    def called(self) -> list[str]:
        """The computations that it runs."""
        found = _CALLED.search(self.attributes)
        return re.findall(r"[\w.-]+", found[1] or found[2]) if found else []


Computation = dict[str, Instruction]


class Speeds(NamedTuple):
    """Of a device: matrix FLOP/s, cycles/s, bytes/s of its memory and of its links."""

    peak: float
    clock: float
    memory: float
    links: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds of a step. shares: what they are spent on, adding up to them.

    "matrix": products at the unit's peak; "memory": what the bytes of their instructions
    and of others take beyond that; "vector": what the cycles take beyond both; "copies"
    and "links": waiting for them.
    """

    seconds: float
    shares: dict[str, float]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _arrays(text: str) -> list[Array]:
    """The arrays of a result. A pred is a byte."""
    found = []
    for dtype, dimensions, order, layout in _ARRAY.findall(text):
        bits = re.search(r"\d+", dtype)
        size = int(bits[0]) if bits else 8
        sizes = _numbers(dimensions)
        padded = list(sizes)
        if tile := re.match(r"T\(([\d,]+)\)", layout):
            tiles = reversed(_numbers(tile[1]))
            for axis, length in zip(_numbers(order), tiles, strict=False):
                padded[axis] = -(-sizes[axis] // length) * length
        found.append(
            Array(
                tuple(sizes),
                math.prod(sizes) * size // 8,
                math.prod(padded) * size // 8,
                "S(1)" in layout,
            )
        )
    return found


class Program:
    """A compiled program; ``text`` is what ``compiled.as_text()`` gives."""

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self._products: dict[str, int] = {}
        computation: Computation = {}
        for line in text.splitlines():
            if found := _COMPUTATION.match(line):
                computation = self.computations[found[2]] = {}
                self.entry = found[2] if found[1] else self.entry
            elif found := _INSTRUCTION.match(line):
                name, result, op, rest = found.groups()
                inner, attributes = _closing(rest)
                operands = re.findall(r"%([\w.-]+)", inner)
                computation[name] = Instruction(
                    name, op, _arrays(result), operands, inner, attributes
                )

    def products(self, name: str) -> int:
        """FLOPs of the matrix products of a computation."""
        if name not in self._products:
            self._products[name] = sum(
                self.products_of(each, name)
                for each in self.computations[name].values()
            )
        return self._products[name]

    def products_of(self, instruction: Instruction, within: str) -> int:
        """FLOPs of the matrix products of an instruction."""
        if instruction.op == "convolution":
            left, right = (
                self.computations[within][operand].results[0]
                for operand in instruction.operands
            )
            return _product(instruction, left.dimensions, right.dimensions)
        if instruction.op == "fusion":
            return sum(map(self.products, instruction.called))
        return 0

    def bytes_of(self, instruction: Instruction, within: str) -> int:
        """What an instruction reads from memory and writes there."""
        computation = self.computations[within]
        total = sum(each.padded for each in instruction.results if not each.on_chip)
        for number, operand in enumerate(instruction.operands):
            array = computation[operand].results[0]
            if array.on_chip:
                continue
            if instruction.op == "fusion":
                total += self._read(instruction.called[0], number, array.padded)
            else:
                total += array.padded
        return total

    def _read(self, name: str, number: int, whole: int) -> int:
        """Bytes that a fusion reads of a parameter, of which it may take slices alone."""
        computation = self.computations[name].values()
        parameter = next(
            each.name
            for each in computation
            if each.op == "parameter" and each.inner == str(number)
        )
        total = 0
        for user in (each for each in computation if parameter in each.operands):
            first = user.operands[0] == parameter
            if user.op in ("slice", "dynamic-slice", "gather") and first:
                total += user.results[0].padded
            elif user.op == "fusion":
                position = user.operands.index(parameter)
                total += self._read(user.called[0], position, whole)
            elif not (user.op == "dynamic-update-slice" and first):
                return whole
        return min(total, whole)


def _closing(text: str) -> tuple[str, str]:
    """What stands before the bracket that closes, and after it."""
    depth = 1
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[:i], text[i + 1 :]
    return text, ""


def _product(
    instruction: Instruction, left: tuple[int, ...], right: tuple[int, ...]
) -> int:
    """FLOPs of a product, which the compiler writes as a convolution.

    Axes that both factors share are its window, whose positions beyond the padded or
    dilated left factor cost nothing.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    given = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    window = dict(each.split("=") for each in given[1].split()) if given else {}
    result = instruction.results[0].dimensions
    axes = [axis for axis in labels[1] if axis.isdigit()]

    def of(key: str, default: str) -> list[str]:
        return window[key].split("x") if key in window else [default] * len(axes)

    pairs = 1
    parts = zip(
        sorted(axes),
        of("size", "1"),
        of("stride", "1"),
        of("pad", "0_0"),
        of("lhs_dilate", "1"),
        of("rhs_dilate", "1"),
        strict=True,
    )
    for axis, size, stride, pad, apart, right_apart in parts:
        outputs = np.arange(result[labels[3].index(axis)])[:, None]
        kernel = np.arange(int(size))[None]
        place = outputs * int(stride) + kernel * int(right_apart)
        place = place - int(pad.split("_")[0])
        inside = (place >= 0) & (place < left[labels[1].index(axis)] * int(apart))
        pairs *= int(np.count_nonzero(inside & (place % int(apart) == 0)))
    outer = result[labels[3].index("b")] * result[labels[3].index("f")]
    return 2 * pairs * outer * right[labels[2].index("i")]


class _Timeline:
    """What has been played through: the time, and when that ends which was begun."""

    def __init__(self, program: Program, speeds: Speeds, by_cycles: bool):
        self.program, self.speeds, self.by_cycles = program, speeds, by_cycles
        self.now = 0.0
        self.pending: dict[str, dict[str, float]] = {"copies": {}, "links": {}}
        self.shares: Counter[str] = Counter()

    def run(self, name: str) -> None:
        """Plays a computation through."""
        for instruction in self.program.computations[name].values():
            op = instruction.op
            if instruction.collective:
                # A sum goes around twice: to be added up, and to be told.
                rounds = 2 if instruction.collective == "all-reduce" else 1
                seconds = rounds * instruction.received / self.speeds.links
                self._begin(instruction, "links", seconds)
                if not op.endswith("-start"):
                    self._wait(instruction.name)
            elif op.endswith("-start"):
                size = min(each.padded for each in instruction.results[:2])
                self._begin(instruction, "copies", size / self.speeds.memory)
            elif op.endswith("-done"):
                self._wait(instruction.operands[0])
            elif op == "while":
                trips = _TRIPS.search(instruction.attributes)
                for _ in range(int(trips[1]) if trips else 1):
                    self.run(instruction.called[0])
            elif op in ("call", "conditional"):
                self.run(max(instruction.called, key=self.program.products))
            elif op not in _NO_WORK:
                self._compute(instruction, name)

    def _begin(self, instruction: Instruction, on: str, seconds: float) -> None:
        pending = self.pending[on]
        start = max([self.now, *pending.values()])
        pending[instruction.name] = start + seconds

    def _wait(self, name: str) -> None:
        on = "links" if name in self.pending["links"] else "copies"
        end = self.pending[on].pop(name, self.now)
        self.shares[on] += max(0.0, end - self.now)
        self.now = max(self.now, end)

    def _compute(self, instruction: Instruction, within: str) -> None:
        matrix = self.program.products_of(instruction, within) / self.speeds.peak
        units = matrix
        found = _CYCLES.search(instruction.attributes)
        if self.by_cycles and found:
            units = max(matrix, int(found[1]) / self.speeds.clock)
        memory = self.program.bytes_of(instruction, within) / self.speeds.memory
        self.shares["matrix"] += matrix
        self.shares["memory"] += max(0.0, memory - matrix)
        self.shares["vector"] += max(0.0, units - max(matrix, memory))
        # Copies in the background have what the instruction leaves of the memory.
        for name, end in self.pending["copies"].items():
            if end > self.now:
                self.pending["copies"][name] = end + memory
        self.now += max(units, memory)


def estimate(program: Program, speeds: Speeds, *, by_cycles: bool = True) -> Estimate:
    """How long a compiled program takes on a device of these speeds.

    by_cycles: with the compiler's cycles of each instruction; False: with matrix products
    at the peak and nothing else that the units do.
    """
    timeline = _Timeline(program, speeds, by_cycles)
    timeline.run(program.entry)
    return Estimate(timeline.now, dict(timeline.shares))
