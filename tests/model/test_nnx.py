"""BertModel in a training loop of Flax NNX gives the losses of the Linen loop."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from bert_jax.model.bert import BertModel

STEPS = 3


def cross_entropy(output, labels):
    return optax.losses.softmax_cross_entropy_with_integer_labels(
        output.pooled_BD, labels
    ).mean()


def linen_losses(module, params, inputs, labels, optimizer):
    """The losses of a few steps, and the final parameters."""

    @jax.jit
    def step(params, opt_state, key):
        def loss_fn(params):
            variables, rngs = {"params": params}, {"dropout": key}
            output = module.apply(variables, *inputs, deterministic=False, rngs=rngs)
            return cross_entropy(output, labels)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    # ToNNX draws its keys from a fork.
    opt_state, keys, losses = optimizer.init(params), nnx.Rngs(dropout=1).fork(), []
    for _ in range(STEPS):
        params, opt_state, loss = step(params, opt_state, keys.dropout())
        losses.append(float(loss))
    return losses, params


def nnx_losses(module, params, inputs, labels, optimizer):
    """Losses and final parameters of the NNX loop in docs/guides/training_loop.md."""

    @nnx.jit
    def step(model, optimizer):
        def loss_fn(model):
            return cross_entropy(model(*inputs, deterministic=False), labels)

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    model = nnx.bridge.ToNNX(module, nnx.Rngs(dropout=1))
    for name, part in params.items():
        setattr(model, name, jax.tree.map(nnx.Param, part))
    optimizer = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
    losses = [float(step(model, optimizer)) for _ in range(STEPS)]
    return losses, nnx.to_pure_dict(nnx.state(model, nnx.Param))


# The gradient of a bias of the keys is only a rounding error, which Adam enlarges. It is
# equal in both loops if the compiler fuses both programs.
@pytest.mark.usefixtures("fused")
def test_a_loop_in_nnx_has_the_losses_and_parameters_of_the_loop_in_linen(
    model_config, init_params, make_arrays
):
    config = model_config(hidden_dropout=0.1, attention_dropout=0.1)
    module = BertModel(config)
    arrays = make_arrays("sequence")
    names = ("input_ids", "token_type_ids", "attention_mask")
    inputs, labels = [arrays[name] for name in names], arrays["label"][:, 0]
    run = module, init_params(module), inputs, labels, optax.adamw(1e-3)
    (linen, params), (nnx_loss, nnx_params) = linen_losses(*run), nnx_losses(*run)
    np.testing.assert_allclose(nnx_loss, linen, rtol=1e-6)
    assert len({*linen}) == STEPS and linen[-1] < linen[0]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), nnx_params, params
    )
