"""BERT-Mini with one change, to measure its effect.

What: mini.py with one of OPTIONS. sinusoidal: the positions of Vaswani et al. pre_norm:
  LayerNorm before each part of a layer. sparing_dropout: no dropout, for short runs
  (ALBERT, section 4.8). mask_40: 40% of the tokens masked (Wettig et al., 2022).
  whole_word, ngram: whole words or runs of words masked. muon: another optimizer.
  mix_80_10_10 and five more: the shares of [MASK], same and random tokens of the paper's
  table 8. 3x768x12 and five more: the layers, width and heads of the paper's table 6.
On: one GPU or TPU chip. Two CPU cores need one to two seconds a step of Mini.
Result: unknown for Mini. Table 8 for BASE on MNLI, NER fine-tuned and NER on frozen
  features: 84.2, 95.4 and 94.9 for mix_80_10_10; 83.6, 94.9 and 94.6 for mix_0_0_100.
  Table 6: MLM perplexity 5.84 for 3x768x12 and 3.23 for 24x1024x16.
Before: your text, or the output of bert_jax prepare; see docs/guides/pretrain.md.
Run:
  bert_jax train --config options:sinusoidal --data.corpus=my_text   (or another of OPTIONS)
"""

from mini import get_config as get_mini_config


def _mix(mask: int, same: int, random: int) -> dict:
    """Percents of the predicted tokens, as table 8 has them."""
    del same  # the rest
    shares = dict(mask_share=mask / 100, random_share=random / 100)
    return dict(data=dict(examples=shares))


def _sizes(layers: int, width: int, heads: int) -> dict:
    sizes = dict(num_layers=layers, hidden_size=width, num_heads=heads)
    return dict(model=sizes | dict(intermediate_size=4 * width))


MIXES = ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))
TABLE_6 = (
    *((3, 768, 12), (6, 768, 3), (6, 768, 12)),
    *((12, 768, 12), (12, 1024, 16), (24, 1024, 16)),
)
OPTIONS = {
    "sinusoidal": dict(model=dict(positions="sinusoidal")),
    "pre_norm": dict(model=dict(pre_norm=True)),
    "sparing_dropout": dict(model=dict(hidden_dropout=0.0, attention_dropout=0.0)),
    "mask_40": dict(
        data=dict(examples=dict(mask_rate=0.4)), phases=dict(max_predictions=52)
    ),
    "muon": dict(optimizer=dict(name="muon")),
    "whole_word": dict(data=dict(examples=dict(masking="whole_word"))),
    "ngram": dict(data=dict(examples=dict(masking="ngram"))),
    **{"mix_" + "_".join(map(str, mix)): _mix(*mix) for mix in MIXES},
    **{"x".join(map(str, sizes)): _sizes(*sizes) for sizes in TABLE_6},
}


def get_config(option: str = "sinusoidal") -> dict:
    """``option``: one of OPTIONS."""
    if option not in OPTIONS:
        raise ValueError(f"option {option!r}, expected one of {sorted(OPTIONS)}")
    changes, config = OPTIONS[option], get_mini_config()
    for group in ("model", "data", "optimizer"):
        config[group].update(changes.get(group, {}))
    config["phases"] = tuple(
        phase | changes.get("phases", {}) for phase in config["phases"]
    )
    return config
