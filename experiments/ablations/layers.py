"""BERT's layers and ModernBERT's at equal compute, at a size for two CPU cores.

What: masked LM without sentence pairs, 4 layers of width 128, 30% of the tokens masked,
  the optimizer Muon. The variant bert has learned positions, LayerNorm after attention and
  feed-forward layers, biases, and a feed-forward layer of width 512. The variant modernbert
  has rotary positions, LayerNorm before both, no biases, a gated feed-forward layer of
  width 192 (1.5 times the width, as ModernBERT), and the second and third layer attend to
  16 tokens on either side. The first variant learns from 4.9 million tokens, and the second
  computes as many floating-point operations, which are more tokens. Both are fine-tuned on
  8,000 rows of SST-2, and scored on the first 100 pairs of each set of BLiMP.
On: two CPU cores; 30 MB of Wikipedia and 16 MB of books.
Result: see docs/results.md. ModernBERT's paper (Warner et al., 2024) compares whole models,
  which also differ in their text, vocabulary and recipe.
Before: a folder DATA as for the study table5.
Run:
  bert_jax study layers:DATA --workdir runs/layers
"""

from table5 import pretraining, tasks

STEPS = 2400
SIZES = dict(num_layers=4, pre_norm=False)
MODERN = dict(
    num_layers=4,
    intermediate_size=192,
    type_vocab_size=0,
    positions="rotary",
    window=16,
    global_every=3,
    pre_norm=True,
    embedding_norm=True,
    norm_bias=False,
    attention_bias=False,
    gated=True,
    feed_forward_bias="none",
    pooler="transform",
    head_bias=False,
)


def variant(data: str, model: dict, learning_rate: float) -> dict:
    """A pretraining of table5 with other layers and the optimizer Muon."""
    config = pretraining(data, "mlm", steps=STEPS, mask_rate=0.3)
    config["model"] = config["model"] | model
    config["optimizer"] = dict(
        name="muon", learning_rate=learning_rate, warmup=0.05, beta2=0.98
    )
    return dict(pretrain=config)


def get_study(data: str = "data", learning_rate: float = 2e-3) -> dict:
    """Two kinds of layers, three seeds. ``data``: the folder of all files."""
    return dict(
        variants=dict(
            bert=variant(data, SIZES, learning_rate),
            modernbert=variant(data, MODERN, learning_rate),
        ),
        tasks=dict(sst2=tasks(data)["sst2"]),
        pairs=(f"{data}/blimp/data",),
        pairs_per_set=100,
        equal_compute=True,
    )
