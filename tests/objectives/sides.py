"""An example objective in one file: predict for each token whether it is in text A or B.

A config names it with ``objective="sides"`` if this folder is on Python's path.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from bert_jax.model import flops
from bert_jax.model.bert import BertModel
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.objective import new_params


class SideModel(nn.Module):
    """BERT with a logit for each token, above 0 for tokens of text B."""

    config: object
    compute: object

    @nn.compact
    def __call__(self, tokens, deterministic):
        bert = BertModel(self.config, self.compute, name="bert")
        # The token types are the labels, so the model reads zeros instead.
        tokens = tokens.replace(token_type_ids=0 * tokens.token_type_ids)
        encoded = bert.encode(tokens, deterministic=deterministic, pool=False)
        return nn.Dense(1, name="side")(encoded.sequence_BLD)[..., 0]


@dataclasses.dataclass(frozen=True)
class Sides:
    """Mean logistic loss of the tokens, without padding."""

    model: SideModel
    sum_names = ("loss", "weight", "correct")
    rules = ((r"side/kernel$", PartitionSpec(None, None)),)  # replicated

    def init(self, key):
        ids = jnp.ones((1, 8), jnp.int32)
        tokens = Tokens.of_mask(ids, ids, ids)
        return new_params(self.model, key, tokens, True)

    def weights(self, batch):
        return {"loss": jnp.sum(batch["attention_mask"]).astype(jnp.float32)}

    def sums(self, params, batch, key):
        rngs = None if key is None else {"dropout": key}
        tokens = Tokens.of_batch(batch)
        logits = self.model.apply({"params": params}, tokens, key is None, rngs=rngs)
        signs = 2.0 * batch["token_type_ids"] - 1
        weights = batch["attention_mask"].astype(jnp.float32)
        return {
            "loss": jnp.sum(weights * jax.nn.softplus(-signs * logits)),
            "weight": jnp.sum(weights),
            "correct": jnp.sum(weights * (signs * logits > 0)),
        }

    def metrics(self, sums):
        return {
            "loss": float(sums["loss"] / sums["weight"]),
            "accuracy": float(sums["correct"] / sums["weight"]),
        }

    def summary(self, metrics):
        return f"accuracy {metrics['accuracy']:.1%}"

    def flops(self, batch):
        rows, length = batch["input_ids"].shape
        config, compute = self.model.config, self.model.compute
        return flops.step(config, compute, rows, length, sequences=1, whole=True)

    def eval_sums(self, params, batch):
        return self.sums(params, batch, None)


def pretraining(model, compute, examples):
    del examples
    return Sides(SideModel(model, compute))
