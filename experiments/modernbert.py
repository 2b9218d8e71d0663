r"""ModernBERT BASE (Warner et al., 2024): 22 layers, width 768, 12 heads, 149M parameters.

What: masked LM without sentence pairs, 364,304 steps of 4,608 x 1,024 tokens, with 30% of
  the tokens masked (15% in evaluations). Layers have rotary positions, gated feed-forward
  layers and no biases. Two of three layers attend to 64 tokens on either side. An argument
  chooses another size: modernbert:large, and modernbert:ettin_17m and :ettin_32m with the
  recipe of Ettin (Weller et al., 2025).
  From: yamls/modernbert/modernbert-base-pretrain.yaml of AnswerDotAI/ModernBERT, and
  pretraining/configs/standard of JHU-CLSP/ettin-encoder-vs-decoder (tiny is 32M, very_tiny
  17M). StableAdamW with a constant learning rate after the warmup, which falls to 0 as
  1 - sqrt over the last 50 billion tokens (Ettin: to 0.02 of the peak). Differences: the
  original decays after a second phase, 250 billion tokens of texts of 8,192, which is not
  part of this config. Batches have their full size from the start, and no layer has
  dropout (0.1 after attention there).
On: 8 H100 GPUs in the paper. By bert_jax estimate, with --compute.scan_layers=True, base
  fits on TPU v5e:4x4 with --accumulation=48 and on v6e:4x4 with 24, and ettin_17m on
  v6e:4x4 with 8.
Result: not trained with bert_jax. After all phases of the original GLUE dev has 88.4
  (paper, table 1).
Before: bert_jax prepare with the tokenizer of ModernBERT or of your own; see
  docs/guides/pretrain.md. docs/guides/modernbert.md trains a small one.
Run:
  bert_jax train --config modernbert --data.path=DIR \
    --accumulation=48 --compute.scan_layers=True
  bert_jax estimate --config modernbert --topology v5e:4x4 \
    --accumulation=48 --compute.scan_layers=True
"""

import math

BATCH_SIZE, LENGTH = 4608, 1024
TOKENS_OF_A_STEP = BATCH_SIZE * LENGTH
DECAY_TOKENS = 50e9
# Layers, width, heads and width of the feed-forward layer; peak learning rate; weight decay
# of a step, which does not depend on the learning rate there; tokens of warmup and in all.
SIZES = {
    "base": ((22, 768, 12, 1152), 8e-4, 1e-5, 3e9, 1.719e12),
    "large": ((28, 1024, 16, 2624), 5e-4, 1e-5, 2e9, 1.719e12),
    "ettin_17m": ((7, 256, 4, 384), 3e-3, 3e-4, 4e9, 1.7e12),
    "ettin_32m": ((10, 384, 6, 576), 3e-3, 3e-4, 4e9, 1.7e12),
}


def get_config(size: str = "base") -> dict:
    """``size``: one of SIZES."""
    if size not in SIZES:
        raise ValueError(f"size {size!r}, expected one of {sorted(SIZES)}")
    sizes, learning_rate, weight_decay, warmup, tokens = SIZES[size]
    layers, width, heads, intermediate = sizes
    final_rate = 0.0
    if size.startswith("ettin"):
        final_rate = 0.02
    return dict(
        model=dict(
            vocab_size=50_368,
            hidden_size=width,
            num_layers=layers,
            num_heads=heads,
            intermediate_size=intermediate,
            max_positions=LENGTH,
            type_vocab_size=0,
            positions="rotary",
            window=64,
            global_every=3,
            local_rope_theta=10_000.0,  # for a later model.rope_theta of longer texts
            pre_norm=True,
            embedding_norm=True,
            norm_bias=False,
            attention_bias=False,
            gated=True,
            feed_forward_bias="none",
            pooler="transform",
            head_bias=False,
            model_type="modernbert",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            layer_norm_epsilon=1e-5,
            scaled_init=True,
        ),
        compute=dict(dtype="bfloat16"),
        data=dict(
            holdout=0.001,
            packing=True,
            threads=8,
            prefetch=16,
            examples=dict(next_sentence=False, mask_rate=0.3),
        ),
        optimizer=dict(
            name="stable_adamw",
            learning_rate=learning_rate,
            schedule="wsd_sqrt",
            warmup_steps=round(warmup / TOKENS_OF_A_STEP),
            decay_steps=round(DECAY_TOKENS / TOKENS_OF_A_STEP),
            final_rate=final_rate,
            clip_norm=math.inf,  # StableAdamW limits updates
            beta2=0.98,
            weight_decay=weight_decay / learning_rate,
            bias_correction=True,
        ),
        phases=(
            dict(
                steps=round(tokens / TOKENS_OF_A_STEP),
                batch_size=BATCH_SIZE,
                sequence_length=LENGTH,
            ),
        ),
        eval_every=4000,
        eval_batches=40,
        checkpoint_every=4000,
        prompts=("The capital of France is [MASK].",),
    )
