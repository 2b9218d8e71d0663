"""Parameters of encoders: which are kernels, and layers that are stacked for a scan."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core.scope import LazyRng
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.model.config import BertConfig
from bert_jax.model.layers import kernel_init


def is_encoder_kernel(path: tuple[Any, ...]) -> bool:
    """Whether a path of parameters leads to a kernel of the encoder."""
    keys = [entry.key for entry in path]
    return keys[-1] == "kernel" and "encoder" in keys


def encoder_names(params: Mapping[str, Any]) -> list[str]:
    """The parts of a model that have an encoder: "bert", and "generator" of ELECTRA.

    The order is fixed, so that all processes trace the same program.
    """
    return [name for name in ("bert", "generator") if name in params]


def with_scan(params: Mapping[str, Any], scan: bool) -> dict[str, Any]:
    """Parameters of a model, with the layers of its encoders stacked if ``scan``.

    numpy arrays stay numpy arrays. An encoder without layers stays as it is.
    """
    changed = dict(params)
    for name in encoder_names(params):
        encoder = params[name]["encoder"]
        if scan and "layer_0" in encoder:
            changed[name] = {**params[name], "encoder": stack_layers(encoder)}
        elif not scan and "layers" in encoder:
            changed[name] = {**params[name], "encoder": unstack_layers(encoder)}
    return changed


def stack_layers(encoder_params: dict[str, Any]) -> dict[str, Any]:
    """``layer_0``, ``layer_1``, ... as one ``layers`` with a leading layer dimension."""
    rest = dict(encoder_params)  # layers, and perhaps a norm after the last layer
    count = sum(name.startswith("layer_") for name in rest)
    layers = [rest.pop(f"layer_{i}") for i in range(count)]
    on_host = isinstance(jax.tree.leaves(layers)[0], np.ndarray)
    stack = np.stack if on_host else jnp.stack
    return {"layers": jax.tree.map(lambda *leaves: stack(leaves), *layers)} | rest


def unstack_layers(encoder_params: dict[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`stack_layers`."""
    rest = dict(encoder_params)
    leaves, structure = jax.tree.flatten(rest.pop("layers"))
    layers = enumerate(zip(*leaves, strict=True))
    layers = {f"layer_{i}": jax.tree.unflatten(structure, layer) for i, layer in layers}
    return layers | rest


def stacked_at_start(
    params: Mapping[str, Any], config: BertConfig, key: jax.Array
) -> dict[str, Any]:
    """``with_scan(params, True)`` of new parameters, which draws each kernel again.

    The kernels of all layers are drawn at once, each from the key that Flax gave it. A
    program that draws and stacks them one by one takes twice as long to compile, and needs
    the memory of all layers twice.

    params: result of ``model.init`` in the same jitted function, whose draws the compiler
      then leaves out. key: the argument of ``model.init``.
    """
    draw = kernel_init(config)
    changed = dict(params)
    for name in encoder_names(params):
        encoder = dict(params[name]["encoder"])
        if "layer_0" not in encoder:  # LSTMs
            continue
        count = sum(part.startswith("layer_") for part in encoder)
        layers = [flatten_dict(encoder.pop(f"layer_{i}")) for i in range(count)]
        stacked = {}
        for path, leaf in layers[0].items():
            if path[-1] != "kernel":  # the same number in all layers
                stacked[path] = jnp.broadcast_to(leaf, (count, *leaf.shape))
                continue
            keys = []
            for i in range(count):
                # Flax's key for the first parameter of a module: its path and a number.
                module = name, "encoder", f"layer_{i}", *path[:-1]
                keys.append(LazyRng.create(key, *module, 1).as_jax_rng())

            def draw_layer(layer_key, leaf=leaf):
                return draw(layer_key, leaf.shape, leaf.dtype)

            stacked[path] = jax.lax.map(draw_layer, jnp.stack(keys))
        encoder["layers"] = unflatten_dict(stacked)
        changed[name] = {**params[name], "encoder": encoder}
    return changed
