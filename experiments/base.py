"""BERT BASE as in the paper: 12 layers, width 768, 12 heads, 110M parameters.

What: MLM and NSP on English Wikipedia and books, 1,000,000 steps of 256 x 512 tokens.
  base:two_phase trains 900,000 steps at length 128 and 100,000 at 512, as the released
  checkpoints were trained, with three tenths of the work. base:lamb trains on twice as
  many examples in 15,625 steps of 32,768 sequences (You et al., 2020), for more than 256
  chips. base:fast trains
  without dropout of attention probabilities, as MosaicBERT and ModernBERT do, and is
  otherwise as in the paper. It can use fused attention: --compute.attention_impl=splash on
  TPUs, or =cudnn on GPUs. On v5e, splash moves 42% fewer bytes a layer by the compiler's
  count.
On: 16 TPU chips for 4 days in the paper. Any number of devices that divides 256 works.
Result: MLM perplexity 3.99 and NSP accuracy 97 to 98% on held-out text (paper, appendix C
  and A.1). GLUE test average 79.6 after fine-tuning (paper, table 1).
Before: your text, or the output of bert_jax prepare; see docs/guides/pretrain.md.
Run:
  bert_jax train --config base --data.path=DIR   (or --data.corpus=my_text)
"""


def phase(
    steps: int, sequence_length: int, max_predictions: int, batch_size: int = 256
) -> dict:
    """Steps at one sequence length."""
    return dict(
        steps=steps,
        sequence_length=sequence_length,
        batch_size=batch_size,
        max_predictions=max_predictions,
    )


PHASES = {
    "paper": (phase(1_000_000, 512, 77),),
    "fast": (phase(1_000_000, 512, 77),),
    "two_phase": (phase(900_000, 128, 20), phase(100_000, 512, 77)),
    # You et al. (2020), table 4, the column of 32K; nine tenths at 128.
    "lamb": (phase(14_063, 128, 20, 32_768), phase(1_562, 512, 77, 32_768)),
}
ADAM = dict(learning_rate=1e-4, warmup_steps=10_000)
LAMB = dict(name="lamb", learning_rate=5e-3, warmup_steps=3_125, bias_correction=True)


def get_config(schedule: str = "paper") -> dict:
    """``schedule``: "paper", "fast", "two_phase" or "lamb"."""
    if schedule not in PHASES:
        raise ValueError(f"schedule {schedule!r}, expected one of {sorted(PHASES)}")
    config = dict(
        model=dict(
            vocab_size=30_522,
            hidden_size=768,
            num_layers=12,
            num_heads=12,
            intermediate_size=3072,
        ),
        compute=dict(dtype="bfloat16"),
        data=dict(
            holdout=0.005,
            packing=True,
            threads=8,
            prefetch=16,
        ),
        optimizer=LAMB if schedule == "lamb" else ADAM,
        phases=PHASES[schedule],
        eval_batches=40,
        checkpoint_every=5_000,
        prompts=("the capital of france is [MASK] .",),
    )
    if schedule == "fast":
        config["model"]["attention_dropout"] = 0.0
    return config
