"""Features of a frozen encoder, computed once and kept on disk."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.inference.evaluation import Split, run_model
from bert_jax.model.tagger import FeatureTagger
from bert_jax.parallel.mesh import traced_on
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.tasks.batches import bucket_lengths
from bert_jax.tasks.task import Features

CHUNK = 512  # sequences whose features are in memory together


def with_hidden(
    split: Split,
    model: FeatureTagger,
    bert_params: Any,
    folder: Path,
    *,
    batch_size: int,
    pad_id: int,
    mesh: Mesh,
    log: Callable[[str], None],
) -> Split:
    """The split with ``hidden``: float32 (L_i, width) of each sequence, in a memory map.

    The file takes 4 * width bytes a token; ``folder`` may go once the run is over.
    """
    features = split.features
    lengths = np.array([len(ids) for ids in features.input_ids])
    params = jax.device_put(bert_params, tree_shardings(bert_params, mesh))

    def hidden(params, batch):
        names = ("input_ids", "token_type_ids", "attention_mask")
        inputs = [batch[name] for name in names]
        return model.apply({"params": {"bert": params}}, *inputs, method="features")

    forward = jax.jit(traced_on(mesh, hidden))
    buckets = bucket_lengths(lengths, 4, model.config.max_positions)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split.name}-{jax.process_index()}.npy"
    shape = (int(lengths.sum()), model.width)
    states = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    ends = np.cumsum(lengths)
    for first, part in _chunks(features):
        outputs = run_model(
            forward,
            params,
            Split(split.name, (), part),
            batch_size=batch_size,
            buckets=buckets,
            pad_id=pad_id,
            mesh=mesh,
        )
        start = ends[first] - lengths[first]
        for output in outputs:
            states[start : start + len(output)] = output
            start += len(output)
    states.flush()
    log(f"{split.name}: {shape[0]:,} vectors of {shape[1]:,} in {path}")
    return dataclasses.replace(split, hidden=np.split(states, ends[:-1]))


def _chunks(features: Features) -> Iterator[tuple[int, Features]]:
    for first in range(0, len(features.input_ids), CHUNK):
        part = slice(first, first + CHUNK)
        ids = features.input_ids[part]
        rows = np.arange(len(ids), dtype=np.int32)
        yield first, Features(ids, features.token_type_ids[part], rows)
