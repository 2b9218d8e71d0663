"""The worker of pretraining.py that times transformers' models in PyTorch.

BertForPreTraining computes the logits of all positions. ModernBertForMaskedLM computes only
the logits of masked tokens (sparse_prediction). dtype float32; bfloat16: bfloat16
parameters and products; autocast: float32 parameters and bfloat16 products.

It needs an environment of its own: pip install torch==2.13.0 transformers==5.24.0
"""

import contextlib
import time

import torch
import transformers
from common import SIZES, answer, process_bytes


def make_model(options):
    """The model in training mode, float32, on the CPU."""
    sizes = dict(SIZES[options.size])
    if sizes.pop("model_type", "bert") == "modernbert":
        config = transformers.ModernBertConfig(
            **sizes, sparse_prediction=True, attn_implementation="sdpa"
        )
        return transformers.ModernBertForMaskedLM(config).train()
    config = transformers.BertConfig(
        **sizes,
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.attention_dropout,
        attn_implementation="sdpa",
    )
    return transformers.BertForPreTraining(config).train()


def random_batch(options, vocab_size, has_pairs):
    """Masked tokens follow [CLS]. The two segments have the same length."""
    torch.manual_seed(0)
    shape = (options.batch, options.length)
    labels = torch.full(shape, -100)
    labels[:, 1 : options.predictions + 1] = torch.randint(
        vocab_size, (options.batch, options.predictions)
    )
    second = torch.arange(options.length) >= options.length // 2
    batch = {
        "input_ids": torch.randint(vocab_size, shape),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "labels": labels,
    }
    if not has_pairs:
        return batch
    return batch | {
        "token_type_ids": second.long().expand(shape),
        "next_sentence_label": torch.randint(2, (options.batch,)),
    }


def make_step(options, model, batch, *, fused):
    """A function that does one training step and returns the loss."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=fused)
    forward = torch.compile(model) if options.compile else model

    def step():
        autocast = torch.autocast(batch["input_ids"].device.type, torch.bfloat16)
        with autocast if options.dtype == "autocast" else contextlib.nullcontext():
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, optimizer


def measure(options):
    """Seconds of a step for each repeat, seconds of the first step, memory."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.set_float32_matmul_precision("high" if cuda else "highest")
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
    model = make_model(options).to(device, dtype)
    has_pairs = isinstance(model, transformers.BertForPreTraining)
    batch = random_batch(options, model.config.vocab_size, has_pairs)
    batch = {name: value.to(device) for name, value in batch.items()}
    step, _ = make_step(options, model, batch, fused=True)

    def seconds(steps):
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        loss = loss.item()  # waits for the device
        return time.perf_counter() - start, loss

    first, _ = seconds(1)
    seconds(2)
    timed = [seconds(options.steps) for _ in range(options.repeats)]
    return {
        **vars(options),
        "seconds_per_step": [total / options.steps for total, _ in timed],
        "first_seconds": first,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else process_bytes(),
        "loss": timed[-1][1],
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


if __name__ == "__main__":
    answer(measure)
