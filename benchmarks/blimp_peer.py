"""Scores minimal pairs with transformers, and compares each set with ``bert_jax score``.

torch masks each token of a sentence in turn and adds up the log probabilities, without code
of bert_jax. The numbers of right pairs in each set must agree, except for pairs whose two
scores differ by less than 0.001, where rounding may matter. Otherwise the exit code is 1.

The script uses one core, and two copies can each score half of the pairs. It needs an
environment of its own: pip install torch==2.13.0 transformers==5.24.0

usage:
  bert_jax convert --checkpoint runs/speedrun-0 --output exported
  bert_jax score --checkpoint exported --pairs data/blimp/data --json > ours.json
  PEER/bin/python benchmarks/blimp_peer.py --model exported --ours ours.json
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import make_parser, markdown, publish, write_report

# The code that made the file of --ours.
SOURCES = ["bert_jax/inference", "bert_jax/interop", "bert_jax/model"]
NEAR = 1e-3  # difference of two scores near -50 that rounding may change


def make_scorer(folder: str) -> Callable[[str], float]:
    """A function from a text to its pseudo-log-likelihood. folder: the exported model."""
    import torch  # a test of the comparison does not have it
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype="float32")
    model.eval()
    torch.set_num_threads(1)  # a sentence is too short for two

    @torch.inference_mode()
    def score(text: str) -> float:
        encoded = tokenizer(text, return_special_tokens_mask=True)
        ids_L = torch.tensor(encoded["input_ids"])
        places_T = (torch.tensor(encoded["special_tokens_mask"]) == 0).nonzero()[:, 0]
        copies_T = torch.arange(len(places_T))
        masked_TL = ids_L.repeat(len(places_T), 1)
        masked_TL[copies_T, places_T] = tokenizer.mask_token_id
        logits_TLV = model(masked_TL, torch.ones_like(masked_TL)).logits
        # Rows of the word table without a token have no probability.
        logits_TV = logits_TLV[copies_T, places_T, : len(tokenizer)]
        logs_TV = torch.log_softmax(logits_TV, dim=-1)
        return float(logs_TV[copies_T, ids_L[places_T]].double().sum())

    return score


def score_set(
    path: Path, part: slice, score: Callable[[str], float], ours: float
) -> dict[str, Any]:
    """The numbers of right pairs of a set. ours: the share by bert_jax."""
    right = near = 0
    pairs = [json.loads(line) for line in path.read_text().splitlines()][part]
    for pair in pairs:
        good, bad = pair["sentence_good"], pair["sentence_bad"]
        if good == bad:  # a tie, which is wrong
            continue
        margin = score(good) - score(bad)
        right += margin > 0
        near += abs(margin) < NEAR
    return {
        "set": path.stem,
        "pairs": len(pairs),
        "right, bert_jax": round(ours * len(pairs)),
        "right, transformers": right,
        "nearly equal scores": near,
    }


def main() -> None:
    """Scores all sets and prints those that differ."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", required=True, help="exported folder")
    parser.add_argument("--ours", required=True, type=Path, help="from score --json")
    parser.add_argument("--pairs_range", default=":", help="as of bert_jax score")
    options = parser.parse_args()
    first, stop = options.pairs_range.split(":")
    part = slice(int(first or 0), int(stop) if stop else None)
    ours = json.loads(options.ours.read_text())
    score, rows, different = make_scorer(options.model), [], []
    for name, share in ours["by_set"].items():
        row = score_set(Path(name), part, score, share)
        rows.append(row)
        difference = abs(row["right, bert_jax"] - row["right, transformers"])
        if difference > row["nearly equal scores"]:
            different.append(row)
        print(json.dumps(row), file=sys.stderr)
    total = sum(row["pairs"] for row in rows)
    if total != ours["pairs"]:
        message = (
            f"{options.ours} has {ours['pairs']:,} pairs, and --pairs_range {total:,}"
        )
        raise SystemExit(message)
    right = sum(row["right, transformers"] for row in rows)
    largest = max(
        abs(row["right, bert_jax"] - row["right, transformers"]) for row in rows
    )
    print(f"transformers {right / total:.2%}, bert_jax {ours['accuracy']:.2%}")
    print(
        f"{total:,} pairs of {len(rows)} sets, at most {largest} pairs differ in a set"
    )
    write_report(options.output, rows=rows)
    publish(
        options.result,
        "pairs",
        what=f"{total:,} minimal pairs: largest difference of a set's right pairs",
        runs=[{"sources": SOURCES}],
        value=largest,
        unit="pairs",
        peer="transformers",
    )
    if different:
        raise SystemExit(markdown(different))


if __name__ == "__main__":
    main()
