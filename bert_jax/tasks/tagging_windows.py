"""Windows of sentences with the words of their document around them.

See data.sequences.windows for ``offsets`` and ``capacity``.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from bert_jax.data.sequences import Window, last_stop


def documents(numbers: Sequence[int], sentences: list[Window]) -> list[Window]:
    """The words of the document around each sentence; equal numbers in a row are one."""
    around = []
    for _, group in itertools.groupby(range(len(numbers)), numbers.__getitem__):
        members = list(group)
        window = sentences[members[0]][0], sentences[members[-1]][1]
        around += [window] * len(members)
    return around


def widen(
    offsets: np.ndarray, window: Window, document: Window, capacity: int
) -> Window:
    """A window with as many words of its document around it as fit, half on each side.

    Where the document ends on one side, the other has the rest.
    """
    (start, stop), (low, high) = window, document
    room = capacity - (offsets[stop] - offsets[start])
    after = offsets[high] - offsets[stop]
    before = max(room // 2, room - after)
    start = max(low, int(np.searchsorted(offsets, offsets[start] - before)))
    stop = min(high, last_stop(offsets, start, capacity))
    # What the end of the document, or a long word there, left free.
    start = max(low, int(np.searchsorted(offsets, offsets[stop] - capacity)))
    return start, stop
