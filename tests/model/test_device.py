"""The dtype of a device if the config does not set it."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.model import device
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.layers import dense


@pytest.mark.parametrize(
    ("platform", "capability", "words", "dtype"),
    [
        ("tpu", 0.0, (), "bfloat16"),
        ("gpu", 8.0, (), "bfloat16"),
        ("gpu", 7.5, (), "float32"),
        ("cpu", 0.0, ("avx512_bf16", "amx_bf16"), "bfloat16"),
        ("cpu", 0.0, ("GenuineIntel", "avx512_bf16"), "float32"),
        ("cpu", 0.0, ("AuthenticAMD", "avx512_bf16"), "bfloat16"),
        ("cpu", 0.0, ("AuthenticAMD", "avx512f"), "float32"),
    ],
)
def test_auto_is_bfloat16_on_devices_that_are_fast_at_it(
    monkeypatch, platform, capability, words, dtype
):
    monkeypatch.setattr(device, "platform", lambda: platform)
    monkeypatch.setattr(device, "capability", lambda: capability)
    monkeypatch.setattr(device, "_cpu_words", lambda: frozenset(words))
    assert device.activation_dtype("auto") == dtype
    assert device.activation_dtype("float32") == "float32"
    config = BertConfig.base(vocab_size=8, hidden_size=64, num_heads=1)
    layer = dense(config, ComputeConfig(dtype="auto"), 4)
    shapes = jax.eval_shape(
        layer.init_with_output, jax.random.key(0), jnp.ones((2, 64))
    )
    assert shapes[0].dtype == dtype
    assert shapes[1]["params"]["kernel"].dtype == "float32"


def test_absent_gpus_count_as_ampere_or_newer():
    """Compilation for absent H100s uses cuDNN's attention."""
    absent = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=absent)
    with jax.sharding.use_abstract_mesh(mesh):
        assert device.platform() == "gpu"
        assert device.capability() == 8.0
        assert device.activation_dtype("auto") == "bfloat16"
    assert device.capability() == 0.0
