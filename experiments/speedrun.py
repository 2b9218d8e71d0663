"""English grammar from 46 MB of text on two CPU cores: the recipe to beat.

What: masked LM of single sentences, as in BabyBERTa (Huebner et al., 2021), with
  ModernBERT's layers: rotary positions, gated feed-forward layers, LayerNorm before each
  part. 4 layers of width 256, rows of 64 tokens that contain several sentences, and the
  optimizer Muon. All chosen tokens become [MASK], so that the model cannot copy a token. In
  the last 900 steps the learning rate falls to 0, and the mask rate from 30 to 15%
  (Ankner et al., 2024).
On: two CPU cores.
Result: docs/results.md, with the rules.
Before: python experiments/data/download.py data
Run:
  bert_jax train --config speedrun:data --workdir runs/speedrun
"""

from small import get_config as get_small_config


def get_config(data: str = "data") -> dict:
    """``data``: the folder of wikipedia/ and books/."""
    config = get_small_config(data)
    config["model"] |= dict(
        intermediate_size=688,
        type_vocab_size=0,
        positions="rotary",
        pre_norm=True,
        embedding_norm=True,
        norm_bias=False,
        attention_bias=False,
        gated=True,
        feed_forward_bias="none",
        pooler="transform",
        pooling="mean",  # for classifiers, because nothing trains the vector of [CLS]
        head_bias=False,
        model_type="modernbert",
    )
    config["data"]["packing"] = True
    config["data"]["examples"] = dict(
        next_sentence=False, single_sentences=True, mask_share=1.0, random_share=0.0
    )
    sentences = dict(batch_size=248, sequence_length=64, mask_rate=0.3)
    return config | dict(
        optimizer=dict(
            name="muon",
            learning_rate=2e-3,
            warmup_steps=200,
            beta2=0.98,
            schedule="wsd_sqrt",
            decay_steps=900,
        ),
        phases=(
            sentences | dict(steps=3000),
            sentences | dict(steps=900, last_mask_rate=0.15),
        ),
    )
