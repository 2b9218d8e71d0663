"""Pretraining that begins with a checkpoint."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.data.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.training.initial import begin_from
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer
from bert_jax.training.state import init_state
from bert_jax.training.step import METRICS


@pytest.fixture(scope="module")
def start(small_store):
    """(config, tokenizer, a function of (config, seed) that makes a fresh state)."""
    directory, vocab_size = small_store
    config = BertConfig(vocab_size, 16, 2, 2, 32, max_positions=32)

    def state(config, seed, compute=ComputeConfig()):
        optimizer = bert_optimizer(OptimizerConfig(1e-3, 1, 10))
        mesh = make_mesh(MeshConfig(data=4, model=2))
        return init_state(
            BertForPreTraining(config, compute), optimizer, mesh, METRICS, seed
        )

    return config, load_tokenizer(directory), state


@pytest.fixture(scope="module")
def checkpoint(start, tmp_path_factory):
    config, tokenizer, state = start
    params = jax.device_get(state(config, 1).params)
    path = tmp_path_factory.mktemp("checkpoints") / "whole"
    save_huggingface(path, config, params, tokenizer, head="pretraining")
    return path, params


@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_parameter_is_the_checkpoints(start, checkpoint, scan_layers):
    config, tokenizer, state = start
    path, params = checkpoint
    compute = ComputeConfig(scan_layers=scan_layers)
    fresh = state(config, 2, compute)
    begun = begin_from(path, config, tokenizer, fresh, lambda line: None)
    assert jax.tree.structure(begun) == jax.tree.structure(fresh)
    assert [x.sharding for x in jax.tree.leaves(begun.params)] == [
        x.sharding for x in jax.tree.leaves(fresh.params)
    ]
    query = begun.params["bert"]["encoder"]
    query = (
        query["layers"]["attention"]["query"]["kernel"][1]
        if scan_layers
        else query["layer_1"]["attention"]["query"]["kernel"]
    )
    expected = params["bert"]["encoder"]["layer_1"]["attention"]["query"]["kernel"]
    assert np.array_equal(query, expected)
    assert np.array_equal(begun.params["nsp"]["kernel"], params["nsp"]["kernel"])


def test_a_head_that_is_not_there_is_random_and_said_so(start, checkpoint, tmp_path):
    config, tokenizer, state = start
    _, params = checkpoint
    bare = {"bert": params["bert"]}
    save_huggingface(tmp_path / "bare", config, bare, tokenizer, head="none")
    said, fresh = [], state(config, 2)
    begun = begin_from(tmp_path / "bare", config, tokenizer, fresh, said.append)
    assert "random: mlm, nsp" in said[0]
    for head in ("mlm", "nsp"):
        jax.tree.map(
            np.testing.assert_array_equal, begun.params[head], fresh.params[head]
        )
    word = begun.params["bert"]["embeddings"]["word"]["embedding"]
    assert np.array_equal(word, params["bert"]["embeddings"]["word"]["embedding"])


def test_other_sizes_and_other_vocabularies_are_refused(start, checkpoint, tmp_path):
    config, tokenizer, state = start
    path, _ = checkpoint
    other = dataclasses.replace(config, num_heads=4)
    with pytest.raises(UserError, match=r"model.num_heads=4, but .* has 2"):
        begin_from(path, other, tokenizer, state(other, 2), print)
    tokens = tokenizer.tokens.copy()
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    swapped = load_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match="vocabulary"):
        begin_from(path, config, swapped, state(config, 2), print)
