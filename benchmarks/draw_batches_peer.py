"""Sequences a CPU second that transformers' collator masks: draw_batches.py runs this.

Blocks of a fixed length, cut from the text beforehand and held in memory, as its example
run_mlm.py makes them: no pairs, no documents, nothing drawn but masks. One thread. It needs
an environment of its own:
  pip install torch==2.13.0 transformers==5.23.0 psutil

usage:
  python benchmarks/draw_batches_peer.py --blocks X.npy --vocabulary vocab.txt
    [--count 4096] [--batch 256] [--repeats 5]
"""

import json
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from workers import parser


def measure(options):
    """The results as a dictionary for JSON."""
    torch.set_num_threads(1)
    tokenizer = transformers.BertTokenizer(str(options.vocabulary))
    collate = transformers.DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=0.15
    )
    special = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    examples = [
        {"input_ids": block, "special_tokens_mask": [int(i in special) for i in block]}
        for block in np.load(options.blocks).tolist()
    ]
    rates = []
    for _ in range(1 + options.repeats):
        begin = time.process_time()
        for first in range(0, options.count, options.batch):
            wanted = range(first, first + options.batch)
            collate([examples[i % len(examples)] for i in wanted])
        rates.append(options.count / (time.process_time() - begin))
    return {
        "sequences_per_second": rates[1:],
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


if __name__ == "__main__":
    flags = parser(__doc__)
    flags.add_argument("--blocks", type=Path, required=True)
    flags.add_argument("--vocabulary", type=Path, required=True)
    flags.add_argument("--count", type=int, default=4096)
    flags.add_argument("--batch", type=int, default=256)
    flags.add_argument("--repeats", type=int, default=5)
    print(json.dumps(measure(flags.parse_args())))
