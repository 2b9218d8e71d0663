"""BERT-Mini (Turc et al., 2019) on your own text: 4 layers, width 256, 11M parameters.

What: MLM and NSP, 10,000 steps of 32 x 128 tokens. Use it to try a text before BASE. An
  argument chooses another objective (paper, section 5.1): mini:mlm without NSP,
  mini:sentence_order as ALBERT, mini:left_to_right as GPT, mini:two_way as ELMo,
  mini:electra.
On: one GPU or TPU chip. Two CPU cores need one to two seconds a step.
Result: in the first 240 steps on 45 MB of text the loss falls from 9.4 to 8.0. The result
  of a whole run is unknown.
Before: your text, or the output of bert_jax prepare; see docs/guides/pretrain.md.
Run:
  bert_jax train --config mini --data.corpus=my_text   (or --data.path=DIR)
"""

from base import get_config as get_base_config
from base import phase

ALONE = dict(next_sentence=False)
# For each objective its module, and its settings of the model and of the examples.
OBJECTIVES = {
    "mlm_nsp": ("mlm_nsp", {}, {}),
    "mlm": ("mlm_nsp", {}, ALONE),
    "sentence_order": ("mlm_nsp", {}, dict(sentence_order=True)),
    "left_to_right": ("causal", dict(causal=True), ALONE),
    "two_way": ("two_way", dict(encoder="lstm", positions="none", num_layers=2), ALONE),
    "electra": ("electra", {}, ALONE | dict(mask_share=1.0, random_share=0.0)),
}


def get_config(objective: str = "mlm_nsp") -> dict:
    """BASE's settings with Mini's sizes, a short schedule and one of OBJECTIVES."""
    if objective not in OBJECTIVES:
        raise ValueError(
            f"objective {objective!r}, expected one of {sorted(OBJECTIVES)}"
        )
    module, model, examples = OBJECTIVES[objective]
    config = get_base_config()
    sizes = dict(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=1024)
    config["model"].update(sizes | model)
    config["data"].update(threads=2, examples=examples)
    if objective == "electra":
        config["prompts"] = ()  # its model fills in no blanks
    return config | dict(
        objective=f"bert_jax.objectives.{module}",
        compute=dict(dtype="auto"),
        optimizer=dict(learning_rate=5e-4, warmup_steps=500),
        phases=(phase(10_000, 128, 20, batch_size=32),),
        log_every=20,
        eval_every=1000,
        eval_batches=20,
        checkpoint_every=1000,
    )
