"""Seconds of a pretraining step of transformers' BertForPreTraining, in PyTorch.

The same work as pretraining_step.py, which see for what is printed: MLM and NSP, the
same tokens masked, clipping, AdamW (fused), dropout. As transformers has it, the product
with the vocabulary is of all positions. float32; bfloat16: parameters and all; autocast:
float32 parameters, bfloat16 products, as Adam of small updates needs.

It needs an environment of its own:
  pip install torch==2.13.0 transformers==5.23.0 psutil

usage:
  python benchmarks/pretraining_peer.py --size base --batch 8 --length 128
    --predictions 20 [--dropout 0.1] [--attention_dropout 0] [--dtype autocast]
    [--attention sdpa] [--compile] [--steps 5] [--repeats 3]
"""

import contextlib
import json
import time

import torch
import transformers
from workers import SIZES, process_bytes, process_seconds, step_parser


def make_model(options):
    """The model of the flags, in training mode, in float32 on the CPU."""
    config = transformers.BertConfig(
        **SIZES[options.size],
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.attention_dropout,
        attn_implementation=options.attention,
    )
    return transformers.BertForPreTraining(config).train()


def random_batch(options, vocabulary, device):
    """Tokens to be predicted at the positions after [CLS]; two segments of one length."""
    torch.manual_seed(0)
    shape = (options.batch, options.length)
    labels = torch.full(shape, -100)
    masked = slice(1, options.predictions + 1)
    labels[:, masked] = torch.randint(vocabulary, (options.batch, options.predictions))
    batch = {
        "input_ids": torch.randint(vocabulary, shape),
        "token_type_ids": (
            torch.arange(options.length) // (options.length // 2)
        ).expand(shape),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "labels": labels,
        "next_sentence_label": torch.randint(2, (options.batch,)),
    }
    return {name: value.to(device) for name, value in batch.items()}


def measure(options):
    """The results as a dictionary for JSON."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
    model = make_model(options).to(device, dtype)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)
    batch = random_batch(options, model.config.vocab_size, device)
    forward = torch.compile(model) if options.compile else model
    torch.set_float32_matmul_precision("high" if cuda else "highest")

    def step():
        precision = (
            torch.autocast(device.type, torch.bfloat16)
            if options.dtype == "autocast"
            else contextlib.nullcontext()
        )
        with precision:
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def seconds(steps):
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step()
        loss = loss.item()  # waits for the device
        return time.perf_counter() - begin, loss

    first, _ = seconds(1)
    start = process_seconds()
    seconds(2)
    timed = [seconds(options.steps) for _ in range(options.repeats)]
    return {
        **vars(options),
        "seconds_per_step": [total / options.steps for total, _ in timed],
        "first_step_seconds": first,
        "start_seconds": start,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else process_bytes(),
        "loss": timed[-1][1],
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


if __name__ == "__main__":
    flags = step_parser(__doc__, ("float32", "bfloat16", "autocast"), "sdpa")
    flags.add_argument("--compile", action="store_true")
    print(json.dumps(measure(flags.parse_args())))
