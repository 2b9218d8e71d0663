"""Makes english.npz: the outputs of models/english in transformers.

tests/interop/test_english.py compares our outputs with them.

    HF_HUB_OFFLINE=1 python tests/golden/huggingface/make_english.py (transformers 5.24)
"""

from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[3]
SENTENCES = [
    "She opened the door.",
    "Two dogs run through the snow, and a third one sleeps.",
    "Naïve cafés cost $5 in Zürich!",
]
BLANKS = [
    "She opened the door and [MASK] into the room.",
    "The book that the boys read [MASK] on the table.",
    "Naïve cafés cost $5 in [MASK]!",
]


def main() -> None:
    """Writes english.npz: token ids, hidden states, and the probabilities at [MASK]."""
    folder = ROOT / "models/english"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert model.dtype == torch.float32
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    blanks = tokenizer(BLANKS, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model.model(**batch)
        logits = model(**blanks).logits
    masked = blanks["input_ids"] == tokenizer.mask_token_id
    best = torch.softmax(logits[masked], dim=-1).topk(5)
    tokens = [tokenizer.convert_ids_to_tokens(row) for row in best.indices.tolist()]
    hidden = output.last_hidden_state * batch["attention_mask"][..., None]
    np.savez_compressed(
        Path(__file__).with_name("english.npz"),
        sentences=np.array(SENTENCES),
        blanks=np.array(BLANKS),
        input_ids=batch["input_ids"].numpy(),
        last_hidden_state=hidden.numpy(),
        tokens=np.array(tokens),
        probabilities=best.values.numpy(),
    )
    for text, row in zip(BLANKS, tokens, strict=True):
        print(text, row)


if __name__ == "__main__":
    main()
