import dataclasses

import pytest

from bert_jax.errors import UserError
from bert_jax.model.config import BertConfig, ComputeConfig


def test_base_and_large_have_the_papers_sizes():
    base, large = BertConfig.base(), BertConfig.large()
    assert (base.num_layers, base.hidden_size, base.num_heads) == (12, 768, 12)
    assert (large.num_layers, large.hidden_size, large.num_heads) == (24, 1024, 16)
    assert base.intermediate_size == 4 * 768
    assert large.intermediate_size == 4 * 1024
    assert base.head_size == large.head_size == 64
    for config in (base, large):
        assert (config.activation, config.layer_norm_epsilon) == ("gelu", 1e-12)
        assert (config.hidden_dropout, config.attention_dropout) == (0.1, 0.1)
    assert BertConfig.base(vocab_size=28996).vocab_size == 28996


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (BertConfig.base(), dict(activation="gelu_new")),
        (ComputeConfig(), dict(dtype="float16")),
        (ComputeConfig(), dict(attention_impl="flash")),
    ],
)
def test_choices_are_checked(config, changes):
    (name,) = changes
    with pytest.raises(UserError, match=f"{name}='.*', expected one of"):
        dataclasses.replace(config, **changes)


def test_model_and_compute_configs_share_no_setting():
    names = [
        {f.name for f in dataclasses.fields(c)} for c in (BertConfig, ComputeConfig)
    ]
    assert not names[0] & names[1]
