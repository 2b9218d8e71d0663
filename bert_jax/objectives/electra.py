"""Replaced token detection (Clark et al. 2020, "ELECTRA", section 3).

A small generator replaces the masked tokens. The discriminator, which fine-tuning uses,
predicts for every token whether it was replaced. The generator learns masked LM, but does
not learn to fool the discriminator. Both share the embeddings.

The paper masks only with [MASK]: set data.examples.mask_share=1 and random_share=0.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from bert_jax.data.examples import ExampleConfig
from bert_jax.model import flops
from bert_jax.model.bert import BertModel, Encoder, MlmHead
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.layers import activation, dense
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.objective import (
    Batch,
    Params,
    PretrainingObjective,
    check_model,
    cross_entropy_sums,
    few_rows,
    mean_metrics,
    new_params,
    rngs,
    sum_names,
    unmasked_ids,
    with_baseline,
)
from bert_jax.parallel.sharding import Rules

# The generator's widths and heads are the discriminator's divided by this number, as in the
# paper's small and large models (table 6). Both have the same number of layers.
GENERATOR_SHARE = 4
DISCRIMINATOR_WEIGHT = 50.0  # factor of the discriminator's loss, lambda in the paper


class Output(NamedTuple):
    """The outputs of generator and discriminator for a batch.

    mlm_logits_BMW: float32 logits of the generator at the masked positions.
    ids_BL: the tokens that the discriminator reads.
    replaced_BL: bool, whether a token differs from the original token.
    logits_BL: float32 logits of the discriminator, above 0 for a token that it predicts to
      be replaced.
    """

    mlm_logits_BMW: jax.Array
    ids_BL: jax.Array
    replaced_BL: jax.Array
    logits_BL: jax.Array


class Generator(nn.Module):
    """A narrower encoder on the discriminator's embeddings, with an MLM head."""

    config: BertConfig
    compute: ComputeConfig

    def setup(self):
        small = generator_config(self.config)
        self.project = dense(small, self.compute, small.hidden_size)
        self.encoder = Encoder(small, self.compute)
        self.mlm = MlmHead(self.config, self.compute)

    def __call__(
        self,
        x_BLD: jax.Array,
        words: nn.Embed,
        tokens: Tokens,
        positions_BM: jax.Array,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """float32 logits (B, M, W) at ``positions_BM``. x_BLD: output of the embeddings."""
        x_BMG, _ = self.encoder(
            self.project(x_BLD), tokens, positions_BM, deterministic=deterministic
        )
        return self.mlm(x_BMG, words)


class Electra(nn.Module):
    """The discriminator ``bert`` with its head ``detector``, and its generator."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        config, compute = self.config, self.compute
        self.bert = BertModel(config, compute)
        self.generator = Generator(config, compute)
        self.transform = dense(config, compute, config.hidden_size)
        self.detector = dense(config, compute, 1, is_head=True)

    def __call__(
        self, batch: Batch, sample_key: jax.Array, *, deterministic: bool
    ) -> Output:
        """sample_key: random key for the tokens of the generator."""
        masked, positions_BM = Tokens.of_batch(batch), batch["mlm_positions"]
        mlm_logits_BMW = self.generator(
            self.bert.embeddings(masked, deterministic=deterministic),
            self.bert.embeddings.word,
            masked,
            positions_BM,
            deterministic=deterministic,
        )
        original_BL = unmasked_ids(batch)
        sample_BM = jax.random.categorical(
            sample_key, jax.lax.stop_gradient(mlm_logits_BMW)
        )
        original_BM = jnp.take_along_axis(original_BL, positions_BM, axis=1)
        used_BM = batch["mlm_weights"] > 0
        sample_BM = jnp.where(used_BM, sample_BM, original_BM).astype(jnp.int32)
        ids_BL = jnp.put_along_axis(
            original_BL, positions_BM, sample_BM, axis=1, inplace=False
        )
        replaced = masked.replace(input_ids=ids_BL)
        encoded = self.bert.encode(replaced, pool=False, deterministic=deterministic)
        x_BLD = activation(self.config)(self.transform(encoded.sequence_BLD))
        logits_BL = self.detector(x_BLD)[..., 0]
        return Output(mlm_logits_BMW, ids_BL, ids_BL != original_BL, logits_BL)


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(PretrainingObjective):
    """The generator's MLM loss plus 50 times the mean logistic loss of all tokens."""

    model: Electra
    sum_names: ClassVar[tuple[str, ...]] = (
        *(*sum_names("mlm"), *sum_names("rtd")),
        "replaced",
    )
    rules: ClassVar[Rules] = ((r"(project|detector)/kernel$", P(None, None)),)

    def init(self, key: jax.Array) -> Params:
        return new_params(self.model, key, few_rows(), key, deterministic=True)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        tokens = jnp.sum(batch["attention_mask"]).astype(jnp.float32)
        return {
            "mlm_loss": jnp.sum(batch["mlm_weights"]) + 1e-5,
            "rtd_loss": jnp.maximum(tokens, 1.0) / DISCRIMINATOR_WEIGHT,
        }

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Without a key the generator draws the same tokens every time."""
        dropout_key, sample_key = None, jax.random.key(0)
        if key is not None:
            dropout_key, sample_key = jax.random.split(key)
        output = self.model.apply(
            {"params": params},
            batch,
            sample_key,
            deterministic=key is None,
            rngs=rngs(dropout_key),
        )
        replaced_BL, logits_BL = output.replaced_BL, output.logits_BL
        losses_BL = jax.nn.softplus(jnp.where(replaced_BL, -logits_BL, logits_BL))
        real_BL = batch["attention_mask"] > 0
        # A logit of 0 predicts nothing, so it is not right.
        right_BL = real_BL & jnp.where(replaced_BL, logits_BL > 0, logits_BL < 0)
        return cross_entropy_sums(
            "mlm", output.mlm_logits_BMW, batch["mlm_ids"], batch["mlm_weights"]
        ) | {
            "rtd_loss": jnp.sum(real_BL * losses_BL),
            "rtd_weight": jnp.sum(real_BL, dtype=jnp.float32),
            "rtd_correct": jnp.sum(right_BL, dtype=jnp.float32),
            "replaced": jnp.sum(real_BL & replaced_BL, dtype=jnp.float32),
        }

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """replaced: share of all tokens that the generator replaced."""
        metrics = mean_metrics("mlm", sums) | mean_metrics("rtd", sums)
        loss = metrics["mlm_loss"] + DISCRIMINATOR_WEIGHT * metrics["rtd_loss"]
        replaced = float(sums["replaced"]) / max(float(sums["rtd_weight"]), 1.0)
        return {"loss": loss, **metrics, "replaced": replaced}

    def summary(self, metrics: dict[str, float]) -> str:
        mlm, rtd = (with_baseline(f"{x}_accuracy", metrics) for x in ("mlm", "rtd"))
        return (
            f"generator {metrics['mlm_loss']:.4f}, {mlm}  "
            f"discriminator {metrics['rtd_loss']:.4f}, {rtd}"
        )

    def flops(self, batch: Batch) -> float:
        config, compute = self.model.config, self.model.compute
        small = generator_config(config)
        rows, L = batch["input_ids"].shape
        M, D, G = batch["mlm_ids"].shape[1], config.hidden_size, small.hidden_size
        discriminator = flops.step(config, compute, rows, L, whole=True)
        generator = flops.step(small, compute, rows, L, predictions=M)
        # The projection, the rest of an MLM head that is wider than its encoder, and the
        # detector.
        rest = L * D * G + M * (D - G) * (G + config.vocab_size) + L * (D * D + D)
        return discriminator + generator + flops.STEP * rows * rest

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The sums without dropout, and how many tokens were replaced or not.

        rtd_counts: float32 (2,).
        """
        sums = self.sums(params, batch, None)
        kept = sums["rtd_weight"] - sums["replaced"]
        return sums | {"rtd_counts": jnp.stack([kept, sums["replaced"]])}


def generator_config(config: BertConfig) -> BertConfig:
    """The config of the generator for a discriminator's config."""
    sizes = {
        name: max(1, getattr(config, name) // GENERATOR_SHARE)
        for name in ("hidden_size", "num_heads", "intermediate_size")
    }
    return dataclasses.replace(config, **sizes)


def pretraining(
    model: BertConfig, compute: ComputeConfig, examples: ExampleConfig
) -> ReplacedTokens:
    """The objective of a run with these configs."""
    check_model(__name__, model, pairs=examples.next_sentence)
    return ReplacedTokens(Electra(model, compute))
