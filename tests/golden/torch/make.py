"""Makes this folder with torch, which the project does not need.

two_way.npz: two layers of torch.nn.LSTM with projections in each direction, on embeddings:
the output of each layer, the mix of the layers, and the loss of both directions.
losses.npz: multi-label losses of torch, and sentence-transformers'
losses of sentence embeddings.

    python tests/golden/torch/make.py     (torch 2.13, sentence-transformers 5)
"""

from pathlib import Path

import numpy as np
import torch
from sentence_transformers.losses import (
    CosineSimilarityLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    TripletDistanceMetric,
    TripletLoss,
)

FOLDER = Path(__file__).parent
# Every size differs.
VOCABULARY, WIDTH, CELLS, LAYERS = 61, 24, 40, 3
LENGTHS = (9, 4, 6)
WAYS = ("forward", "backward")
MATRYOSHKA = (8, 5, 2)


def two_way() -> dict[str, np.ndarray]:
    """Parameters by our names, ids of sequences, and the outputs of torch."""
    torch.manual_seed(0)
    golden = {}
    words = torch.randn(VOCABULARY, WIDTH)
    output, bias = torch.randn(VOCABULARY, WIDTH) * 0.3, torch.randn(VOCABULARY)
    weights, gamma = torch.randn(LAYERS + 1), torch.tensor(1.7)
    ids = [torch.randint(5, VOCABULARY, (length,)) for length in LENGTHS]
    lstms = {}
    for layer in range(LAYERS):
        for way in WAYS:
            lstm = torch.nn.LSTM(WIDTH, CELLS, proj_size=WIDTH, batch_first=True)
            name = f"layer_{layer}_{way}"
            lstms[name] = lstm
            kept = dict(lstm.named_parameters())
            golden |= {
                f"{name}_inputs/kernel": kept["weight_ih_l0"].T,
                f"{name}_inputs/bias": kept["bias_ih_l0"] + kept["bias_hh_l0"],
                f"{name}/state/kernel": kept["weight_hh_l0"].T,
                f"{name}/project/kernel": kept["weight_hr_l0"].T,
            }
    total = count = 0
    for number, own in enumerate(ids):
        states = [torch.cat([words[own]] * 2, -1)]
        below = dict.fromkeys(WAYS, words[own][None])
        for layer in range(LAYERS):
            for way in WAYS:
                read = below[way].flip(1) if way == "backward" else below[way]
                out, _ = lstms[f"layer_{layer}_{way}"](read)
                out = out.flip(1) if way == "backward" else out
                below[way] = below[way] + out if layer else out
            states.append(torch.cat([below[way][0] for way in WAYS], -1))
        mixed = gamma * sum(
            s * x for s, x in zip(weights.softmax(0), states, strict=True)
        )
        golden[f"states_{number}"] = torch.stack(states)
        golden[f"mixed_{number}"] = mixed
        golden[f"ids_{number}"] = own
        forward, backward = states[-1].split(WIDTH, -1)
        for top, targets in ((forward[:-1], own[1:]), (backward[1:], own[:-1])):
            logits = top @ output.T + bias
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            count += len(targets)
    golden |= {"words": words, "output": output, "bias": bias}
    golden |= {"weights": weights, "gamma": gamma, "loss": total / count}
    return {name: value.detach().numpy() for name, value in golden.items()}


class Given(torch.nn.Module):
    """A model that returns its inputs."""

    def forward(self, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": vectors}

    def get_embedding_dimension(self) -> int:
        return MATRYOSHKA[0]


def losses() -> dict[str, np.ndarray]:
    """Logits, vectors, labels, and their losses."""
    torch.manual_seed(1)
    logits, labels = torch.randn(6, 5) * 2, (torch.rand(6, 5) < 0.4).float()
    u, v, scores = torch.randn(7, 8), torch.randn(7, 8), torch.rand(7)
    negatives = torch.randn(7, 2, 8)
    model = Given()
    triplet = TripletLoss(model, TripletDistanceMetric.COSINE, triplet_margin=0.5)
    cosine, contrastive = (
        CosineSimilarityLoss(model),
        MultipleNegativesRankingLoss(model),
    )
    texts = {"cosine": [u, v], "contrastive": [u, v]}
    texts |= {"hard": [u, v, *negatives.unbind(1)], "triplet": [u, v, negatives[:, 0]]}
    own = {"cosine": cosine, "contrastive": contrastive}
    own |= {"hard": contrastive, "triplet": triplet}
    found = {"multi_label": torch.nn.BCEWithLogitsLoss()(logits, labels)}
    for name, loss in own.items():
        found[name] = loss(texts[name], scores)
        matryoshka = MatryoshkaLoss(model, loss, list(MATRYOSHKA))
        found[f"{name}_matryoshka"] = matryoshka(texts[name], scores)
    given = {"logits": logits, "labels": labels, "u": u, "v": v, "scores": scores}
    given["negatives"] = negatives
    return {name: value.numpy() for name, value in (given | found).items()}


def main() -> None:
    """Writes every file."""
    np.savez_compressed(FOLDER / "losses.npz", **losses())
    np.savez_compressed(FOLDER / "two_way.npz", **two_way())


if __name__ == "__main__":
    main()
