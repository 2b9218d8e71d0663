"""Parameters of encoders: which are kernels, and layers that are stacked for a scan."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.core.scope import LazyRng
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.model.layers import DenseGeneral, kernel_init

# The name of a stack: "layers", or "layers_1_3" for the layers 1, 4, 7, ...
_STACK = re.compile(r"layers(?:_(\d+)_(\d+))?")


def is_stacked(path: tuple[Any, ...]) -> bool:
    """Whether a path of parameters leads to a stack of layers."""
    return any(_STACK.fullmatch(entry.key) for entry in path)


def is_encoder_kernel(path: tuple[Any, ...]) -> bool:
    """Whether a path of parameters leads to a kernel of the encoder."""
    keys = [entry.key for entry in path]
    return keys[-1] == "kernel" and "encoder" in keys


def encoder_names(params: Mapping[str, Any]) -> list[str]:
    """The parts of a model that have an encoder: "bert", and "generator" of ELECTRA."""
    names = []
    for name, part in sorted(params.items()):
        if not isinstance(part, Mapping):
            continue
        encoder = part.get("encoder")
        if not isinstance(encoder, Mapping):
            continue
        if any(key == "layer_0" or _STACK.fullmatch(key) for key in encoder):
            names.append(name)
    return names


def with_scan(
    params: Mapping[str, Any], scan: bool, first: int = 0, period: int = 1
) -> dict[str, Any]:
    """Parameters of a model, with the layers of its encoders stacked if ``scan``.

    first, period: BertConfig.scanned. numpy arrays stay numpy arrays. An encoder without
    layers is unchanged.
    """
    changed = dict(params)
    for name in encoder_names(params):
        encoder = unstack_layers(params[name]["encoder"])
        if scan:
            encoder = stack_layers(encoder, first, period)
        changed[name] = {**params[name], "encoder": encoder}
    return changed


def stack_name(layer: int, period: int) -> str:
    """The name of the stack of every ``period``-th layer from ``layer`` on."""
    if (layer, period) == (0, 1):
        return "layers"
    return f"layers_{layer}_{period}"


def stacked_layers(name: str, rows: int) -> range:
    """The numbers of the layers in a stack of ``rows`` layers. Empty for another name."""
    match = _STACK.fullmatch(name)
    if match is None:
        return range(0)
    layer, period = int(match[1] or 0), int(match[2] or 1)
    return range(layer, layer + rows * period, period)


def stack_layers(
    encoder_params: dict[str, Any], first: int = 0, period: int = 1
) -> dict[str, Any]:
    """Layers from ``first`` on as stacks of every ``period``-th layer.

    A stack has a leading dimension of layers. Layers before ``first`` are unchanged.
    """
    rest = dict(encoder_params)  # layers, and perhaps a norm after the last layer
    count = 0
    while f"layer_{count}" in rest:
        count += 1
    for place in range(first, min(first + period, count)):
        layers = [rest.pop(f"layer_{i}") for i in range(place, count, period)]
        on_host = isinstance(jax.tree.leaves(layers)[0], np.ndarray)
        stack = np.stack if on_host else jnp.stack
        stacked = jax.tree.map(lambda *leaves, stack=stack: stack(leaves), *layers)
        rest[stack_name(place, period)] = stacked
    return rest


def unstack_layers(encoder_params: dict[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`stack_layers`."""
    rest = {}
    for name, part in encoder_params.items():
        leaves, structure = jax.tree.flatten(part)
        numbers = stacked_layers(name, len(leaves[0]))
        if not numbers:
            rest[name] = part
        for i, layer in zip(numbers, zip(*leaves, strict=True), strict=False):
            rest[f"layer_{i}"] = jax.tree.unflatten(structure, layer)
    return rest


def init_stacked(
    model: nn.Module, key: jax.Array, *inputs: Any, **options: Any
) -> dict[str, Any]:
    """``with_scan(params, True)`` of new parameters.

    Most of a model are kernels with the initialisers of :func:`kernel_init`. Each is drawn
    for all layers at once, from the keys that Flax gave the layers. A program that draws
    and stacks them one by one takes twice as long to compile, and needs the memory of all
    layers twice. The parameters of all other initialisers are stacked.

    model: without scan_layers. inputs, options: the arguments of ``model.init``. Call this
      function under jit, so that the compiler removes the draws of kernels by model.init.
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
    changed = with_scan(params, True, *model.config.scanned)
    for name in encoder_names(params):
        encoder = changed[name]["encoder"]
        for stack, layers in encoder.items():
            numbers = stacked_layers(stack, len(jax.tree.leaves(layers)[0]))
            leaves = flatten_dict(layers)
            for path, leaf in leaves.items():
                modules = [(name, "encoder", f"layer_{i}", *path[:-1]) for i in numbers]
                if path[-1] != "kernel" or draws.keys().isdisjoint(modules):
                    continue
                draw = draws[modules[0]]

                def draw_layer(layer_key, leaf=leaf, draw=draw):
                    return draw(layer_key, leaf.shape[1:], leaf.dtype)

                # Flax's key for the first parameter of a module: its path and a number.
                keys = [LazyRng.create(key, *x, 1).as_jax_rng() for x in modules]
                leaves[path] = jax.lax.map(draw_layer, jnp.stack(keys))
            encoder[stack] = unflatten_dict(leaves)
    return changed
