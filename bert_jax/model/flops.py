"""Operations of a training step, from the shapes of its matrices.

A multiply-add counts as two operations, and the backward pass as twice the forward pass.
Elementwise operations and lookups are not counted.
"""

from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig

# Operations for each multiply-add: two in the forward pass and four in the backward pass.
STEP = 6


def step(
    config: BertConfig,
    compute: ComputeConfig,
    rows: int,
    length: int,
    *,
    predictions: int = 0,
    sequences: int = 0,
    whole: bool = False,
) -> int:
    """Operations of a step of an encoder and its heads on rows of ``length`` tokens.

    Counts the layers, the MLM head at ``predictions`` positions of a row, and the pooler
    and the NSP head of its ``sequences``. The last layer of a Transformer is computed and
    counted only at these positions and at [CLS], but at all positions if ``whole`` or with
    compute.scan_layers or if the layer has a window. XLA's cost analysis would count the
    body of a scan only once.
    """
    D, V, width = config.hidden_size, config.vocab_size, config.hidden_size
    if config.encoder == "lstm":
        width = 2 * D
        layers = _two_way_layers(config, length)
    else:
        last = predictions + sequences
        if whole or compute.scan_layers:
            last = length
        layers = _layers(config, length, last)
    heads = predictions * (D * D + D * V) + sequences * (width + 2) * D
    return STEP * rows * (layers + heads)


def _layers(config: BertConfig, length: int, last: int) -> int:
    """Multiply-adds of the layers of a Transformer on a row.

    Counts all matrices, and both attention products over all pairs of positions, or over
    the keys of each query's window.
    last: number of positions of the output of the last layer.
    """
    D, F = config.hidden_size, config.intermediate_size
    products = 2
    if config.gated:
        products = 3
    total = 0
    for i in range(config.num_layers):
        queries, keys, window = length, length, config.pattern(i).window
        if window:
            keys = min(length, 2 * window + 1)
        elif i == config.num_layers - 1:
            queries = last
        total += length * 2 * D * D
        total += queries * (2 * D * D + 2 * keys * D + products * D * F)
    return total


def _two_way_layers(config: BertConfig, length: int) -> int:
    """Multiply-adds of the layers of two_way.py on a row, in both directions."""
    D, F = config.hidden_size, config.intermediate_size
    direction = _gates(D, F, D) + F * D  # the output is projected
    return config.num_layers * length * 2 * direction


def _gates(inputs: int, cells: int, outputs: int) -> int:
    """Multiply-adds of the gates of an LSTM on a token."""
    return 4 * cells * (inputs + outputs)


def bilstm(features: FeatureConfig, inputs: int, tokens: int) -> int:
    """Operations of a step of a BiLSTM on tokens of ``inputs`` features."""
    width = features.width
    first = 2 * _gates(inputs, width, width)
    others = (features.lstm_layers - 1) * 2 * _gates(2 * width, width, width)
    return STEP * tokens * (first + others)
