"""BERT BASE as in the paper: 12 layers, width 768, 12 heads, 110M parameters.

What: MLM + NSP on English Wikipedia and books, 1,000,000 updates of 256 x 512.
On: 16 TPU chips in the paper, 4 days; any number of accelerators that divides 256.
Result: MLM perplexity 3.99, NSP accuracy 97-98% held out (paper, appendix C and A.1);
  GLUE test average 79.6 after fine-tuning (paper, table 1).
Before: a vocabulary and a prepared store, see README.md, "Pretrain on your own text".
Run:
  python -m bert_jax.train --config experiments/base.py
  python -m bert_jax.train --config experiments/base.py:two_phase   (900k at 128, 100k
    at 512: the schedule of the released checkpoints, three tenths of the work)
  python -m bert_jax.train --config experiments/base.py:lamb   (the same examples in
    15,625 updates of 32,768, for more chips than 256 sequences can feed)
"""

from ml_collections import ConfigDict


def phase(
    steps: int, sequence_length: int, max_predictions: int, batch_size: int = 256
) -> ConfigDict:
    """Updates at one sequence length."""
    return ConfigDict(
        dict(
            steps=steps,  # updates
            sequence_length=sequence_length,  # tokens, [CLS] and two [SEP] counted
            batch_size=batch_size,  # sequences an update, over all devices
            max_predictions=max_predictions,  # masked tokens a sequence, at most
        )
    )


PHASES = {
    "paper": (phase(1_000_000, 512, 77),),
    "two_phase": (phase(900_000, 128, 20), phase(100_000, 512, 77)),
    # You et al. (2020), table 4, the column of 32K; nine tenths at 128.
    "lamb": (phase(14_063, 128, 20, 32_768), phase(1_562, 512, 77, 32_768)),
}
LAMB = dict(name="lamb", learning_rate=5e-3, warmup_steps=3_125, bias_correction=True)


def get_config(schedule: str = "paper") -> ConfigDict:
    """``schedule``: "paper", "two_phase" or "lamb"."""
    if schedule not in PHASES:
        raise ValueError(f"schedule {schedule!r}, expected one of {sorted(PHASES)}")
    config = ConfigDict(
        dict(
            model=dict(
                vocab_size=30_522,  # tokens; must be the store's
                hidden_size=768,
                num_layers=12,
                num_heads=12,
                intermediate_size=3072,  # feed-forward width
                max_positions=512,  # longest sequence, in tokens
                type_vocab_size=2,  # segments A and B
                hidden_dropout=0.1,  # probability, embeddings and residual branches
                attention_dropout=0.1,  # probability, on attention probabilities
                activation="gelu",  # exact erf; gelu_tanh as in later releases
                layer_norm_epsilon=1e-12,
                initializer_range=0.02,  # standard deviation, cut at two of them
            ),
            compute=dict(
                dtype="bfloat16",  # of the activations; parameters are float32
                float32_gradients=False,  # summed in dtype; True: in float32
                attention_impl="auto",  # or plain, xla, splash (TPU), cudnn (GPU)
                remat=False,  # recompute layers in the backward pass: less memory
                scan_layers=False,  # one compiled layer for all: compiles faster
            ),
            data=dict(
                path="data/wikibooks",  # written by python -m bert_jax.prepare
                corpus=(),  # inputs to prepare into the workdir instead
                vocabulary_size=30_522,  # tokens, of a vocabulary made from corpus
                lower_case=True,  # likewise
                holdout=0.005,  # share of the documents kept for evaluation
                examples=dict(
                    masking="token",  # or whole_word, ngram
                    mask_rate=0.15,  # share of all tokens
                    mask_share=0.8,  # of these: share that becomes [MASK],
                    random_share=0.1,  # a random token; the rest stays
                    max_ngram=3,  # words, for masking="ngram"
                    short_sequence_rate=0.1,  # share of documents cut shorter
                    next_sentence=True,  # False: MLM alone
                ),
                packing=True,  # pairs share rows: the same update in fewer of them
                threads=8,  # reader threads on each host
                prefetch=16,  # batches drawn ahead
            ),
            optimizer=dict(
                name="adam",  # or lamb
                learning_rate=1e-4,  # peak
                warmup_steps=10_000,  # updates
                warmup=0.0,  # share of all steps, where warmup_steps is 0
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-6,  # outside the square root
                weight_decay=0.01,  # times the rate; not on biases and LayerNorm
                clip_norm=1.0,  # of the global gradient
                bias_correction=False,  # the original has none
            ),
            mesh=dict(
                replica=1,  # slices
                data=-1,  # devices that split the batch; -1: all that are left
                model=1,  # devices that split heads, feed-forward and vocabulary
                fsdp=False,  # devices along data share the memory of parameters too
            ),
            phases=PHASES[schedule],
            init_from="",  # a checkpoint to begin with; empty: random parameters
            seed=0,
            accumulation=1,  # microbatches an update: less memory, same result
            log_every=100,  # updates
            eval_every=10_000,  # updates; 0: never
            eval_batches=40,  # batches of the held-out documents
            checkpoint_every=5_000,  # updates
            keep_checkpoints=3,  # newest
            prompts=("the capital of france is [MASK] .",),  # filled in at the end
        )
    )
    if schedule == "lamb":
        config.optimizer.update(LAMB)
    return config
