"""Shapes for inputs that are not known beforehand: few, whatever comes."""

from jax.sharding import Mesh

from bert_jax.parallel.mesh import batch_divisor

# Each at most half as long again as the one before: padding stays below a third, and no
# input compiles more than these.
_LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def lengths_up_to(most: int) -> tuple[int, ...]:
    """Lengths that sequences of at most ``most`` tokens are padded to."""
    return (*(length for length in _LENGTHS if length < most), most)


def batch_rows(units: int, batch_size: int, mesh: Mesh) -> int:
    """Rows of the batches for so many units: a power of two where they fill no batch.

    Rounded up to a multiple of the devices that share a batch.
    """
    rows = min(batch_size, 1 << max(units - 1, 0).bit_length())
    parts = batch_divisor(mesh)
    return -(-rows // parts) * parts
