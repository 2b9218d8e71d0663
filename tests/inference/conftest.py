"""A small pretrained model."""

import jax
import pytest

from bert_jax.inference.model import Bert
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.mlm_nsp import MlmNsp
from tests.word_tokenizer import PARTS_CONFIG, PARTS_TOKENIZER


@pytest.fixture(scope="session")
def pretrained():
    """A random model with the heads of pretraining."""
    params = jax.jit(MlmNsp(BertForPreTraining(PARTS_CONFIG)).init)(jax.random.key(0))
    params = jax.device_get(params)
    return Bert(PARTS_CONFIG, params, PARTS_TOKENIZER, "pretraining")
