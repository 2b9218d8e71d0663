"""What the engine asks of an objective; a new one is a file beside this one."""

from typing import Any, Protocol

import jax

Batch = dict[str, jax.Array]
Params = dict[str, Any]


class Objective(Protocol):
    """What a batch teaches, as pure functions. The engine (training/) does the rest.

    The loss of a step is the sum of sums[name] / weights[name] over the names that
    ``weights`` gives. Sums add up over microbatches, and weights are those of the global
    batch, so the loss does not depend on how a batch is split over devices, hosts or
    microbatches. An objective is hashable: runs that have the same one share what they
    compile.

    sum_names: the keys of what ``sums`` returns.
    """

    sum_names: tuple[str, ...]

    def init(self, key: jax.Array) -> Params:
        """float32 parameters; their shapes depend on the model's config alone."""
        ...

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """What the sum of each loss is divided by: float32 scalars of a whole batch."""
        ...

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        """float32 scalars: losses, and what the metrics need. Dropout where ``key``."""
        ...

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """What is reported, from sums over any number of batches."""
        ...

    def summary(self, metrics: dict[str, float]) -> str:
        """The part of a line of the log that tells of these metrics."""
        ...
