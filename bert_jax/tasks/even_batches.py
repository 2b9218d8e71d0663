"""Random batches of which one is much like the other, by exchanges of a few units."""

from collections.abc import Callable, Sequence

import numpy as np

EVEN = 0.01  # batches differ by no more than this share of their tokens, if they can
TRIES = 40  # exchanges that are tried for a batch that does not fit


def even_batches(
    lengths_U: np.ndarray, batch_size: int, random: np.random.Generator
) -> list[np.ndarray]:
    """The units in batches at random, all with about as many tokens.

    As long as the longest and the shortest batch differ by more than 1% and it helps,
    they exchange the two units that bring them closest to each other. The last batch may
    be partial and stays as it was drawn.
    """
    order = random.permutation(len(lengths_U))
    full = len(order) // batch_size
    batches = order[: full * batch_size].reshape(full, batch_size)
    sizes = lengths_U[batches]
    totals = sizes.sum(axis=1)
    while full and np.ptp(totals) > EVEN * totals.mean():
        high, low = totals.argmax(), totals.argmin()
        more = sizes[high][:, None] - sizes[low]  # what each exchange would move
        gap = totals[high] - totals[low]
        i, j = np.unravel_index(np.abs(2 * more - gap).argmin(), more.shape)
        if not 0 < more[i, j] < gap:
            break
        for array in (batches, sizes):
            array[high, i], array[low, j] = array[low, j], array[high, i]
        totals[high] -= more[i, j]
        totals[low] += more[i, j]
    rest = order[full * batch_size :]
    return [*batches, rest] if len(rest) else [*batches]


def exchanged(
    batches: Sequence[np.ndarray],
    lengths_UC: np.ndarray,
    fits: Callable[[np.ndarray], bool],
    random: np.random.Generator,
) -> list[np.ndarray]:
    """The same units in batches of the same sizes, of which more fit.

    A batch whose sequences' lengths do not passes one unit at random for one of another
    batch, which fits and must still; the first such exchange that mends it is kept.
    """
    batches = [units.copy() for units in batches]

    def fitting(units: np.ndarray) -> bool:
        return fits(lengths_UC[units].ravel())

    mended = [fitting(units) for units in batches]
    for bad in [number for number, fine in enumerate(mended) if not fine]:
        for _ in range(TRIES):
            other = int(random.integers(len(batches)))
            if not mended[other]:
                continue
            pair = batches[bad].copy(), batches[other].copy()
            i, j = (int(random.integers(len(units))) for units in pair)
            pair[0][i], pair[1][j] = pair[1][j], pair[0][i]
            if all(map(fitting, pair)):
                batches[bad], batches[other] = pair
                mended[bad] = True
                break
    return batches
