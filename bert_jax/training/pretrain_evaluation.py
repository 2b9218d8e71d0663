"""The evaluations of a pretraining, on documents that it does not learn from."""

import bisect
import collections
import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import jax
from jax.sharding import Mesh

from bert_jax.data.mixture import Text
from bert_jax.data.phases import Phase
from bert_jax.data.pipeline import TrainingBatches, drawn_ahead, eval_batches
from bert_jax.errors import DivergenceError
from bert_jax.objectives.objective import (
    Batch,
    Params,
    PretrainingObjective,
    eval_metrics,
    eval_summary,
    microbatches,
    summed,
)
from bert_jax.parallel.mesh import put_batch, steps_ahead
from bert_jax.parallel.programs import jit_whole
from bert_jax.progress import Progress
from bert_jax.training.config import TrainConfig
from bert_jax.training.metrics import Reporter


@dataclasses.dataclass(eq=False)
class Evaluations:
    """The evaluations of a run.

    objective, batches: of the run. held_out: its texts, with the documents that the run
    does not learn from.
    """

    config: TrainConfig
    mesh: Mesh
    objective: PretrainingObjective
    batches: TrainingBatches
    held_out: Sequence[Text]

    def __post_init__(self):
        self._sums = jit_whole(self.mesh, self._batch_sums)
        # The batches of a phase are kept, because each plan reads all lengths.
        self._batches_of: dict[Phase, TrainingBatches] = {}
        steps = [phase.steps for phase in self.config.phases]
        self._ends = list(itertools.accumulate(steps))  # the last step of each phase

    def _batch_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The sums of a batch, in microbatches as in a step, which need less memory."""
        parts = self.config.accumulation
        if parts == 1:
            return self.objective.eval_sums(params, batch)

        def part_sums(part: Batch) -> dict[str, jax.Array]:
            return self.objective.eval_sums(params, part)

        return summed(part_sums, microbatches(batch, parts))

    def is_due(self, step: int) -> bool:
        """Whether a step is evaluated: every ``eval_every``, and the last of a phase."""
        every = self.config.eval_every
        return bool(every) and (step % every == 0 or step in self._ends)

    def evaluate(self, step: int, params: Params, reporter: Reporter) -> None:
        """Writes and logs the metrics of dev.

        Raises DivergenceError if the loss is not finite.
        """
        *_, last = self._evaluated(step, params, reporter, "eval")
        reporter.progress.evaluation = last  # for the baselines in reports

    def evaluate_average(self, step: int, params: Params, reporter: Reporter) -> None:
        """Writes and logs the metrics of the average of the parameters."""
        self._evaluated(step, params, reporter, "eval_average")

    def _evaluated(
        self, step: int, params: Params, reporter: Reporter, split: str
    ) -> list[dict[str, float]]:
        """Writes and logs the metrics at each length. split: their name in the files."""
        found = []
        for phase in self._phases(step):
            metrics = self.metrics(phase, params)
            if not math.isfinite(metrics["loss"]):
                loss = f"the loss of {split} after step {step}"
                raise DivergenceError(f"{loss} is {metrics['loss']}")
            found.append(metrics)
            length = phase.sequence_length
            reporter.write(step, split, {"sequence_length": length, **metrics})
            summary = f"{split} at {length} tokens: {eval_summary(metrics)}"
            reporter.log(f"step {step}  {summary}")
        return found

    def _phases(self, step: int) -> list[Phase]:
        """The phases for which a step is evaluated, with the steps of an evaluation.

        The end of a phase is evaluated for this phase and for the next, and only once if
        just their mask rates differ, because all evaluations have the same mask rate.
        """
        ends = self._ends[:-1]
        phases = {}
        for i in sorted({bisect.bisect(ends, near) for near in (step - 1, step)}):
            phase = replace(self.config.phases[i], steps=self.config.eval_batches)
            phases[phase.sequence_length, phase.batch_size, phase.causal] = phase
        return list(phases.values())

    def metrics(self, phase: Phase, params: Params) -> dict[str, float]:
        """The metrics of ``phase.steps`` batches with the sizes of a phase."""
        config = self.config
        if phase not in self._batches_of:
            self._batches_of[phase] = eval_batches(
                self.batches, phase, self.held_out, config.eval_mask_rate
            )
        ahead = drawn_ahead(
            self._batches_of[phase],
            threads=config.data.threads,
            prefetch=config.data.prefetch,
            timeout=config.data_timeout,
        )
        bar = Progress("evaluating", ahead, total=phase.steps, unit="batches")
        sums, in_flight = [], collections.deque()
        with bar:
            for batch in bar:
                in_flight.append(self._sums(params, put_batch(batch, self.mesh)))
                if len(in_flight) > steps_ahead(self.mesh):
                    sums.append(jax.device_get(in_flight.popleft()))
        sums += jax.device_get(list(in_flight))
        return eval_metrics(self.objective, sums)
