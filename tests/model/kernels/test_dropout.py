"""Dropout with 8 random bits a value, for each platform's generator, and with 32."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import device, layers
from bert_jax.model.config import MeshConfig
from bert_jax.model.kernels.dropout import (
    keep_mask,
    mask_from_generator,
    mask_from_philox,
)
from bert_jax.parallel.mesh import (
    batch_sharding,
    make_mesh,
    summed_over_devices,
    traced_on,
)

MASKS = pytest.mark.parametrize(
    "mask",
    [
        layers.keep_mask,
        keep_mask,
        mask_from_generator,
        mask_from_philox,
    ],
)


@MASKS
@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.999])
def test_every_element_is_dropped_at_the_exact_rate(rate, mask):
    """Mean of 20,000 keys. 0.1 is between 25/256 and 26/256, the possible thresholds."""
    keys = jax.random.split(jax.random.key(0), 20_000)
    kept = np.asarray(jax.vmap(lambda key: mask(key, rate, (2, 5)))(keys))
    error = np.sqrt(rate * (1 - rate) / len(keys))
    assert np.abs((1 - kept.mean(axis=0)) - rate).max() < 4 * error
    # All elements together: 200,000 nearly independent draws.
    assert abs((1 - kept.mean()) - rate) < 4 * error / np.sqrt(kept[0].size) + 1e-4


@MASKS
def test_elements_of_one_call_are_independent(mask):
    """Even elements from one 32-bit word, which are a quarter of the row apart."""
    kept = np.asarray(mask(jax.random.key(1), 0.5, (64, 1024)))
    for shift in (1, 2, 255, 256, 257, 512, 768):
        agree = np.mean(kept == np.roll(kept, shift, axis=1))
        assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(kept.size), shift
    agree = np.mean(kept[1:] == kept[:-1])
    assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(kept.size)


@pytest.mark.parametrize("width", [1, 3, 4, 7])
def test_kept_values_are_scaled_in_every_width_and_dtype(width):
    x = jnp.full((300, width), 2.0, jnp.bfloat16)
    out = np.asarray(layers.drop(x, 0.2, jax.random.key(2)), np.float32)
    assert out.shape == x.shape
    assert set(np.unique(out)) == {0.0, 2.5}


def test_bytes_are_used_only_on_cpus_or_on_request(monkeypatch):
    for platform, setting, expected in (
        ("cpu", "auto", keep_mask),
        ("tpu", "auto", layers.keep_mask),
        ("gpu", "auto", layers.keep_mask),
        ("tpu", "bytes", keep_mask),
        ("cpu", "plain", layers.keep_mask),
    ):
        monkeypatch.setattr(device, "platform", lambda platform=platform: platform)
        assert layers.mask_function(setting) is expected


def test_each_platform_has_its_cheapest_mask():
    """Every platform draws bytes, and the compiled program has no branch."""
    draw = jax.jit(lambda key: keep_mask(key, 0.1, (8, 128)))
    for platform, algorithm in (
        ("cpu", "THREE_FRY"),
        ("tpu", "DEFAULT"),
        ("cuda", "PHILOX"),
    ):
        lowered = draw.trace(jax.random.key(0)).lower(lowering_platforms=(platform,))
        text = lowered.as_text()
        assert "ui8" in text
        assert re.findall(r"algorithm = (\w+)", text) == [algorithm]
    compiled = draw.lower(jax.random.key(0)).compile().as_text()
    assert "conditional" not in compiled
    assert "u8[" in compiled


@pytest.mark.parametrize(
    ("mask", "bits"),
    [
        (layers.keep_mask, "tensor<2x4x32x16xui32>"),
        (mask_from_generator, "tensor<2x4x16x32xui8>"),
        (mask_from_philox, "tensor<2x512xui32>"),
    ],
)
def test_devices_draw_their_own_rows(mask, bits):
    """Each device draws two rows. Masks of different rows agree only by chance."""
    mesh = make_mesh(MeshConfig(replica=2, data=2, model=2))

    def draw(key, rows):
        return traced_on(mesh, mask)(key, 0.5, (rows, 4, 32, 16))

    draw = jax.jit(draw, static_argnums=1, out_shardings=batch_sharding(mesh))
    key = jax.random.key(4)
    kept = np.asarray(draw(key, 8))
    assert np.array_equal(kept, draw(key, 8))
    for shift in range(1, 8):
        agree = np.mean(kept == np.roll(kept, shift, axis=0))
        assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(kept.size), shift
    # Each of the four groups of devices draws two of the eight rows.
    text = draw.lower(key, 8).as_text()
    assert re.findall(r"rng_bit_generator .*, (.*)\)", text) == [bits]
    # If the devices do not divide the rows, each device draws all rows.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        odd = mask(key, 0.5, (3, 4))
    assert np.array_equal(odd, mask(key, 0.5, (3, 4)))


@pytest.mark.parametrize("mask", [layers.keep_mask, mask_from_generator])
def test_devices_that_have_their_own_rows_draw_different_masks(mask):
    """On four devices, equal masks would add up to 0 or 4 everywhere."""
    mesh = make_mesh(MeshConfig(replica=2, data=2, model=2))

    def draw(key, batch):
        def kept(rows, key):
            return rows[:, None] + mask(key, 0.5, (len(rows), 1000))

        return summed_over_devices(kept)(batch, key)

    rows = jax.device_put(jnp.zeros(8), batch_sharding(mesh))
    drawn = jax.jit(traced_on(mesh, draw))(jax.random.key(4), rows)
    assert drawn.shape == (2, 1000)
    counts = np.bincount(np.int32(drawn).ravel(), minlength=5) / drawn.size
    np.testing.assert_allclose(counts, np.array([1, 4, 6, 4, 1]) / 16, atol=0.04)


def test_a_cpus_mask_does_not_depend_on_the_number_of_devices():
    """Each device has its rows of the mask of the whole batch."""
    mesh = make_mesh(MeshConfig(replica=2, data=4))

    def draw(key, numbers):
        def kept(numbers, key):
            rows = keep_mask(key, 0.5, (len(numbers), 50)).astype(jnp.int32)
            return jnp.zeros((16, 50), jnp.int32).at[numbers].set(rows)

        return summed_over_devices(kept)(numbers, key)

    key = jax.random.key(4)
    numbers = jax.device_put(jnp.arange(16), batch_sharding(mesh))
    drawn = jax.jit(traced_on(mesh, draw))(key, numbers)
    np.testing.assert_array_equal(drawn, keep_mask(key, 0.5, (16, 50)))
