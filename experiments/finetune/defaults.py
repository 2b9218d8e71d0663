"""A whole fine-tuning config: the dataclasses' defaults under an experiment's own settings.

Not a config to run: see glue.py, wnut17.py, codah.py, squad.py beside it.
"""

import dataclasses

from ml_collections import ConfigDict

from bert_jax.tasks.families import FAMILIES
from bert_jax.training.finetune_config import FineTuneConfig


def defaults(family: str, **data) -> ConfigDict:
    """A config of a task family; ``data`` are the settings of its data."""
    config = FineTuneConfig(family, FAMILIES[family].config_class(**data))
    return ConfigDict(dataclasses.asdict(config))


def with_approach(config: ConfigDict, approach: str, epochs: int) -> ConfigDict:
    """For "features", the paper's feature-based tagger (5.3): the encoder is frozen."""
    if not approach:
        return config
    if approach != "features":
        raise ValueError(f"approach {approach!r}, expected features, or nothing")
    config.buckets = 6  # the BiLSTM reads one sentence a row
    config.features.layers = (-4, -3, -2, -1)  # hidden states, concatenated
    config.optimizer.learning_rate = 1e-3  # of a BiLSTM that begins from nothing
    config.optimizer.bias_correction = True
    config.epochs = epochs
    return config
