r"""RoBERTa BASE (Liu et al., 2019): 12 layers, width 768, 12 heads, 125M parameters.

What: masked LM without sentence pairs, 500,000 steps of 8,192 x 512 tokens. Each pass over
  the text has new masks. roberta:large has the sizes and the learning rate of LARGE.
  From: table 9 of the paper. It did not clip gradients.
On: 1,024 V100 GPUs for about a day in the paper (100,000 steps). By bert_jax estimate, base
  fits on TPU v5e:4x4 with --accumulation=32 --compute.scan_layers=True.
Result: not trained with bert_jax. The dev sets of MNLI and SST-2 have 87.6% and 94.8%
  (fairseq, examples/roberta/README.md).
Before: bert_jax prepare with a byte-level BPE, which bert_jax vocabulary --kind bpe makes;
  see docs/guides/pretrain.md.
Run:
  bert_jax train --config roberta --data.path=DIR \
    --accumulation=32 --compute.scan_layers=True
"""

import math

# Layers, width, heads; peak learning rate; steps of warmup.
SIZES = {
    "base": ((12, 768, 12), 6e-4, 24_000),
    "large": ((24, 1024, 16), 4e-4, 30_000),
}


def get_config(size: str = "base") -> dict:
    """``size``: "base" or "large"."""
    if size not in SIZES:
        raise ValueError(f"size {size!r}, expected one of {sorted(SIZES)}")
    (layers, width, heads), learning_rate, warmup_steps = SIZES[size]
    return dict(
        model=dict(
            vocab_size=50_265,
            hidden_size=width,
            num_layers=layers,
            num_heads=heads,
            intermediate_size=4 * width,
            type_vocab_size=1,
            position_offset=2,
            layer_norm_epsilon=1e-5,
            model_type="roberta",
        ),
        compute=dict(dtype="bfloat16"),
        data=dict(
            holdout=0.005,
            packing=True,
            threads=8,
            prefetch=16,
            examples=dict(next_sentence=False),
        ),
        optimizer=dict(
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            beta2=0.98,
            clip_norm=math.inf,
            bias_correction=True,
        ),
        phases=(dict(steps=500_000, batch_size=8192, sequence_length=512),),
        eval_batches=40,
        checkpoint_every=5_000,
        prompts=("The capital of France is<mask>.",),
    )
