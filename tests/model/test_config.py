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


@pytest.mark.parametrize(
    ("settings", "layers", "windows", "scanned"),
    [
        ({}, 4, [0, 0, 0, 0], (0, 1)),
        ({"global_every": 3}, 7, [0, 8, 8, 0, 8, 8, 0], (1, 3)),
        ({"global_every": 3}, 6, [0, 8, 8, 0, 8, 8], (0, 3)),
        ({"global_every": 2}, 5, [0, 8, 0, 8, 0], (1, 2)),
        ({"global_every": 9}, 3, [0, 8, 8], (3, 9)),
        ({"global_every": 0}, 3, [8, 8, 8], (0, 1)),
        # The first layer has no attention norm, so a scan starts after it.
        ({"embedding_norm": True, "pre_norm": True}, 3, [0, 0, 0], (1, 1)),
        (
            {"embedding_norm": True, "pre_norm": True, "global_every": 3},
            6,
            [0, 8, 8, 0, 8, 8],
            (3, 3),
        ),
    ],
)
def test_a_pattern_gives_each_layer_its_window_and_theta(
    settings, layers, windows, scanned
):
    if "global_every" in settings:
        settings = settings | {"window": 8, "local_rope_theta": 50.0}
        settings |= {"positions": "rotary", "rope_theta": 700.0}
    config = BertConfig(96, 16, layers, 2, 32, **settings)
    patterns = [config.pattern(i) for i in range(layers)]
    assert [pattern.window for pattern in patterns] == windows
    thetas = {0: config.rope_theta, 8: 50.0}
    assert all(x.rope_theta == thetas[x.window] for x in patterns)
    assert config.scanned == scanned
    first, period = scanned
    repeats = patterns[first:]
    assert repeats == repeats[:period] * ((layers - first) // period)
    same = dataclasses.replace(config, local_rope_theta=0.0)
    assert {same.pattern(i).rope_theta for i in range(layers)} == {config.rope_theta}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 8}, "window=8 has no effect, .* set global_every=3, or 0 for"),
        ({"global_every": 3}, "global_every=3 needs window, which is 0"),
        ({"window": -1, "global_every": 2}, "model.window"),
        (
            {"window": 8, "global_every": 2, "local_rope_theta": 5.0},
            "local_rope_theta=5 needs positions=rotary and a window",
        ),
        ({"window": 8, "global_every": 0, "encoder": "lstm"}, "lstm needs window=0"),
    ],
)
def test_settings_of_a_window_without_an_effect_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        BertConfig(96, 16, 4, 2, 32, **settings)
