"""An example objective in one file: predict for each token whether it is in text A or B.

A config names it with ``objective="sides"`` if this folder is on Python's path.
"""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from bert_jax.model.bert import BertModel
from bert_jax.model.tokens import Tokens
from bert_jax.objectives import objective


class SideModel(nn.Module):
    """BERT with two logits for each token: A and B."""

    config: object
    compute: object

    @nn.compact
    def __call__(self, tokens, deterministic):
        # The token types are the labels, so the model reads zeros instead.
        tokens = tokens.replace(token_type_ids=0 * tokens.token_type_ids)
        bert = BertModel(self.config, self.compute, name="bert")
        encoded = bert.encode(tokens, deterministic=deterministic, pool=False)
        return nn.Dense(2, name="side")(encoded.sequence_BLD)


@dataclasses.dataclass(frozen=True)
class Sides(objective.PretrainingObjective):
    """The cross entropy of the two sides."""

    model: SideModel
    rules = ((r"side/kernel$", PartitionSpec(None, None)),)  # replicated

    def init(self, key):
        tokens = Tokens.of_batch(objective.few_rows())
        return objective.new_params(self.model, key, tokens, True)

    def weights(self, batch):
        return {"side_loss": jnp.sum(batch["attention_mask"]).astype(jnp.float32)}

    def sums(self, params, batch, key):
        tokens, rngs = Tokens.of_batch(batch), objective.rngs(key)
        logits = self.model.apply({"params": params}, tokens, key is None, rngs=rngs)
        labels = batch["token_type_ids"]
        weights = batch["attention_mask"].astype(jnp.float32)
        return objective.cross_entropy_sums("side", logits, labels, weights)


def pretraining(model, compute, examples):
    """The objective of a config."""
    return Sides(SideModel(model, compute))
