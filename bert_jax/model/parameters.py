"""Parameters of encoders: which are kernels, and layers that are stacked for a scan."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.core.scope import LazyRng
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError
from bert_jax.model.layers import DenseGeneral, kernel_init


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
    if layers[0].keys() != layers[-1].keys():
        raise UserError("compute.scan_layers=True needs model.embedding_norm=False")
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


def init_stacked(
    model: nn.Module, key: jax.Array, *inputs: Any, **options: Any
) -> dict[str, Any]:
    """``with_scan(params, True)`` of new parameters.

    The kernels with the initialisers of :func:`kernel_init` are most of a model. Each is
    drawn for all layers at once, from the keys that Flax gave the layers. A program that
    draws and stacks them one by one takes twice as long to compile, and needs the memory of
    all layers twice. The parameters of all other initialisers are stacked.

    model: without scan_layers. inputs, options: the arguments of ``model.init``. It must be
      called in the same jitted function: the compiler leaves out its draws of the kernels.
    """
    known = kernel_init(model.config), kernel_init(model.config, is_output=True)
    draws = {}  # the initialisers of these kernels by the paths of their modules

    def record(call: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if isinstance(module, DenseGeneral) and module.kernel_init in known:
            draws[module.path] = module.kernel_init
        return call(*args, **kwargs)

    with nn.intercept_methods(record):
        params = model.init(key, *inputs, **options)["params"]
    changed = with_scan(params, True)
    for name in encoder_names(params):
        encoder = changed[name]["encoder"]
        if "layers" not in encoder:  # LSTMs
            continue
        count = sum(part.startswith("layer_") for part in params[name]["encoder"])
        stacked = flatten_dict(encoder["layers"])
        for path, leaf in stacked.items():
            keys = []
            for i in range(count):
                module = name, "encoder", f"layer_{i}", *path[:-1]
                if path[-1] == "kernel" and module in draws:
                    draw = draws[module]
                    # Flax's key for the first parameter of a module: its path and a number.
                    keys.append(LazyRng.create(key, *module, 1).as_jax_rng())
            if not keys:
                continue

            def draw_layer(layer_key, leaf=leaf, draw=draw):
                return draw(layer_key, leaf.shape[1:], leaf.dtype)

            stacked[path] = jax.lax.map(draw_layer, jnp.stack(keys))
        encoder["layers"] = unflatten_dict(stacked)
    return changed
