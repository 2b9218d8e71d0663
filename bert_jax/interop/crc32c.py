"""CRC-32C (Castagnoli, RFC 3720 appendix B.4) in numpy, as TensorFlow's files use it."""

import numpy as np

_POLYNOMIAL = 0x82F63B78  # of RFC 3720, bits reversed
_LANE = 256  # bytes that one lane takes one after the other
_CHUNK = 1 << 20  # 4096 lanes at a time: fast, and small enough for the cache
_BITS = np.arange(32, dtype=np.uint32)


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE = _byte_table()


def crc32c(data: bytes | memoryview | np.ndarray) -> int:
    """The checksum of ``data`` (bytes, or contiguous uint8), as an unsigned integer."""
    data = np.frombuffer(data, np.uint8)
    crc = 0xFFFFFFFF
    head = len(data) % _CHUNK
    for start, stop in [(0, head), *_spans(head, len(data))]:
        crc = _extend(crc, data[start:stop])
    return crc ^ 0xFFFFFFFF


def unmask(masked: int) -> int:
    """The checksum behind the rotated form that TensorFlow and LevelDB store."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def _spans(start: int, stop: int) -> list[tuple[int, int]]:
    return [(i, i + _CHUNK) for i in range(start, stop, _CHUNK)]


def _extend(crc: int, data: np.ndarray) -> int:
    """The state after ``data``, at most _CHUNK bytes, from the state ``crc``.

    A state of zero stays zero through zero bytes, so data may be padded at the front,
    and a state is the same as its four bytes xored into the data. Lanes therefore run
    side by side from zero, and pairs of neighbours are joined until one is left.
    """
    if len(data) < 4:
        for byte in data:
            crc = int(_TABLE[(crc ^ int(byte)) & 255]) ^ crc >> 8
        return crc
    lanes = 1 << (-(-len(data) // _LANE) - 1).bit_length()
    padded = np.zeros(lanes * _LANE, np.uint8)
    padded[-len(data) :] = data
    first = len(padded) - len(data)
    padded[first : first + 4] ^= np.frombuffer(crc.to_bytes(4, "little"), np.uint8)

    states = np.zeros(lanes, np.uint32)
    for column in np.ascontiguousarray(padded.reshape(lanes, _LANE).T):
        states = _TABLE[(states ^ column) & 255] ^ states >> 8
    shift = _SHIFT_LANE
    while len(states) > 1:
        states = _apply(shift, states[0::2]) ^ states[1::2]
        shift = _apply(shift, shift)
    return int(states[0])


def _apply(matrix: np.ndarray, states: np.ndarray) -> np.ndarray:
    """A 32 x 32 matrix over GF(2), given as 32 columns, times each state."""
    bits = states[:, None] >> _BITS[None, :] & np.uint32(1)
    return np.bitwise_xor.reduce(bits * matrix[None, :], axis=1)


def _shift_lane() -> np.ndarray:
    """The matrix that takes a state through _LANE zero bytes."""
    columns = np.uint32(1) << _BITS
    for _ in range(_LANE):
        columns = _TABLE[columns & 255] ^ columns >> 8
    return columns


_SHIFT_LANE = _shift_lane()
