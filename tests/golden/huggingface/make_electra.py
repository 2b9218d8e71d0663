"""Makes electra.npz with torch and transformers, which the project does not need.

A tiny random generator and discriminator with shared embeddings, their outputs for a
batch, and ELECTRA's two losses.

    HF_HUB_OFFLINE=1 python tests/golden/huggingface/make_electra.py   (transformers 5.23)
"""

from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

SIZES = dict(
    vocab_size=61,
    embedding_size=24,
    num_hidden_layers=2,
    max_position_embeddings=19,
    initializer_range=0.3,
)


def main() -> None:
    """Writes the tensors under "generator." and "discriminator.", and the batch."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    generator = transformers.ElectraForMaskedLM(
        transformers.ElectraConfig(
            **SIZES, hidden_size=6, num_attention_heads=1, intermediate_size=10
        )
    ).eval()
    discriminator = transformers.ElectraForPreTraining(
        transformers.ElectraConfig(
            **SIZES, hidden_size=24, num_attention_heads=4, intermediate_size=40
        )
    ).eval()
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    with torch.no_grad():
        for model in (generator, discriminator):
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
    original = rng.integers(5, 61, (3, 11))
    mask = np.arange(11) < np.array([[11], [8], [5]])
    places = np.array([[2, 7], [1, 5], [3, 0]])
    weights = np.array([[1, 1], [1, 1], [1, 0]])
    masked, replaced = original.copy(), original.copy()
    drawn = np.array(
        [[9, original[0, 7]], [11, 12], [13, 0]]
    )  # one token is the original
    for row, column in zip(*np.nonzero(weights), strict=True):
        masked[row, places[row, column]] = 4
        replaced[row, places[row, column]] = drawn[row, column]
    types = np.int64(np.arange(11) > 5) * mask
    read = {
        "token_type_ids": torch.tensor(types),
        "attention_mask": torch.tensor(np.int64(mask)),
    }
    with torch.no_grad():
        logits = generator(torch.tensor(masked), **read).logits
        found = discriminator(torch.tensor(replaced), **read).logits
    used = np.nonzero(weights)
    at = used[0], places[used]
    labels = torch.tensor(np.float32(replaced != original))
    golden = {
        "input_ids": masked,
        "token_type_ids": types,
        "attention_mask": np.int64(mask),
        "mlm_positions": places,
        "mlm_ids": np.take_along_axis(original, places, 1) * weights,
        "mlm_weights": weights,
        "drawn": drawn,
        "mlm_logits": logits[at].numpy(),
        "rtd_logits": found.numpy(),
        "mlm_loss": cross_entropy(logits[at], torch.tensor(original[at])).numpy(),
        "rtd_loss": binary_cross_entropy_with_logits(found[mask], labels[mask]).numpy(),
    }
    for name, model in (("generator", generator), ("discriminator", discriminator)):
        for key, tensor in model.state_dict().items():
            if name == "discriminator" or "embeddings." not in key:
                golden[f"{name}.{key}"] = tensor.numpy()
    np.savez_compressed(Path(__file__).parent / "electra.npz", **golden)


if __name__ == "__main__":
    main()
