"""A small BERT on the English inside Python itself: the first thing to run.

What: a vocabulary of 4,096 tokens and a 2-layer BERT, MLM + NSP, on the language
  reference and the standard library's docstrings. Nothing is downloaded.
On: two CPU cores, in under 4 minutes.
Result: held-out MLM accuracy 17% (always the most frequent token: 6%), NSP accuracy
  58% (always the more frequent label: 55%).
Run: make train, or
  python -m bert_jax.train --config experiments/tiny.py
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The settings of the embedded default."""
    return ConfigDict(
        dict(
            model=dict(
                vocab_size=4096,  # tokens
                hidden_size=128,
                num_layers=2,
                num_heads=2,
                intermediate_size=512,  # feed-forward width
                max_positions=64,  # longest sequence, in tokens
                type_vocab_size=2,  # segments A and B
                hidden_dropout=0.0,  # probability; a run this short underfits
                attention_dropout=0.0,  # probability
                activation="gelu",  # exact erf
                layer_norm_epsilon=1e-12,
                initializer_range=0.05,  # standard deviation; 0.02 suits a width of 768
            ),
            compute=dict(
                dtype="float32",  # of the activations
                float32_gradients=False,  # where dtype is bfloat16
                attention_impl="auto",
                remat=False,
                scan_layers=False,
            ),
            data=dict(
                path="",  # prepared into the workdir
                corpus=("python-docs",),  # the English inside Python itself
                vocabulary_size=4096,  # tokens
                lower_case=True,
                holdout=0.05,  # share of the documents kept for evaluation
                examples=dict(
                    masking="token",  # or whole_word, ngram
                    mask_rate=0.15,  # share of all tokens
                    mask_share=0.8,  # of these: share that becomes [MASK],
                    random_share=0.1,  # a random token; the rest stays
                    max_ngram=3,  # words, for masking="ngram"
                    short_sequence_rate=0.1,  # share of documents cut shorter
                    next_sentence=True,  # False: MLM alone
                ),
                packing=False,  # True: pairs share rows; three programs to compile
                threads=1,  # reader threads
                prefetch=8,  # batches drawn ahead
            ),
            optimizer=dict(
                name="adam",  # or lamb
                learning_rate=2e-3,  # peak
                warmup_steps=200,  # updates
                warmup=0.0,  # share of all steps, where warmup_steps is 0
                beta1=0.9,
                beta2=0.98,
                epsilon=1e-6,  # outside the square root
                weight_decay=0.01,  # times the rate; not on biases and LayerNorm
                clip_norm=1.0,  # of the global gradient
                bias_correction=False,
            ),
            mesh=dict(
                replica=1,  # slices
                data=-1,  # devices that split the batch; -1: all that are left
                model=1,  # devices that split heads, feed-forward and vocabulary
                fsdp=False,  # devices along data share the memory of parameters too
            ),
            phases=(
                ConfigDict(
                    dict(
                        steps=3000,  # updates
                        sequence_length=64,  # tokens
                        batch_size=16,  # sequences an update
                        max_predictions=10,  # masked tokens a sequence, at most
                    )
                ),
            ),
            init_from="",  # a checkpoint to begin with; empty: random parameters
            seed=0,
            accumulation=1,
            log_every=200,  # updates
            eval_every=1000,  # updates
            eval_batches=100,  # batches of the held-out documents
            checkpoint_every=500,  # updates
            keep_checkpoints=2,  # newest
            prompts=(  # filled in at the end; none of them is in the corpus
                "Return [MASK] if the thread is still waiting for a job.",
                "If the file does not [MASK], an exception is raised.",
                "Returns [MASK] when the two names do not differ.",
                "This method must be overridden by the [MASK] class.",
            ),
        )
    )
