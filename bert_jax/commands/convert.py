"""Converts a checkpoint to a folder for transformers, or for bert_jax.

The numbers stay exactly the same, unless --average or --dtype is given.

usage:
  bert_jax convert --checkpoint runs/tiny --output exported
  bert_jax convert --checkpoint tiny_2020 --output tiny --activation gelu_tanh
  bert_jax convert --checkpoint runs/tiny --output half --dtype float16

flags:
  --checkpoint C      workdir, Hugging Face folder or name, or Google's file
  --output DIR        new folder
  --overwrite         replace a saved model in the folder
  --to {hf,bert_jax}  form of the folder (hf: transformers loads it)
  --activation A      gelu, gelu_tanh, relu, silu (as in the file)
  --average A         ema, or a number of checkpoints of the run (none)
  --dtype D           dtype of the file: float32, float16 or bfloat16 (float32)

--to bert_jax also writes a model that transformers has no class for. Only bert_jax reads
the folder of such a model. --average ema converts the moving average of a run's parameters
(the setting average), and --average 3 the mean of three checkpoints: the newest, or the one
in --checkpoint and the two before it. --dtype float16 or bfloat16 halves the size of the
file and rounds its numbers, float16 to three digits (below 3e-8 to 0) and bfloat16 to two.
Libraries still compute the model in float32, the dtype in config.json. Google's TensorFlow
files since February 2019 need --activation gelu_tanh, although their bert_config.json has
gelu (docs/weights.md).
"""

from pathlib import Path

from bert_jax.commands import cli, startup
from bert_jax.errors import counted
from bert_jax.interop.find import check_save
from bert_jax.model.config import ACTIVATIONS
from bert_jax.progress import print_line

FILE_DTYPES = "float32", "float16", "bfloat16"


def main(argv: list[str]) -> None:
    """Parses the command line, converts, and lists missing and unexpected tensors."""
    forms, activations = ("hf", "bert_jax"), ("", *ACTIVATIONS)
    flags = {"checkpoint": cli.checkpoint, "output": Path, "overwrite": False}
    flags["to"] = forms
    flags |= {"activation": activations, "average": ""}
    flags["dtype"] = FILE_DTYPES
    parser = cli.argument_parser(__doc__, flags)
    args = parser.parse_args(argv)
    check_save(args.output, overwrite=args.overwrite, argument="--overwrite")
    startup.quiet_libtpu()
    from bert_jax.interop.huggingface import save_huggingface
    from bert_jax.interop.load import load

    changes = {"activation": args.activation} if args.activation else {}
    average = args.average
    if average.isdecimal():
        average = int(average)
    checkpoint = load(args.checkpoint, average=average, **changes)
    config, origin = checkpoint.config, f"a checkpoint of {checkpoint.source}"
    layers = counted(config.num_layers, "layer")
    heads = counted(config.num_heads, "head")
    print_line(
        f"{args.checkpoint}: {origin}; model_type: {config.model_type}; {layers}, width "
        f"{config.hidden_size}, {heads}, {counted(config.vocab_size, 'token')}; "
        f"head: {checkpoint.head}"
    )
    print_line(f"missing: {', '.join(checkpoint.missing) or 'none'}")
    unexpected = ", ".join(checkpoint.unexpected) or "none"
    print_line(f"unexpected, not converted: {unexpected}")
    if checkpoint.tokenizer is None:
        print_line("no vocabulary beside the weights, so none is written")
    card = f"Converted by `bert_jax convert` from {checkpoint.origin}."
    if args.average:
        card = f"{card[:-1]} with `--average {args.average}`."
    if args.dtype != "float32":
        card = f"{card} Its numbers were rounded to {args.dtype}."
    options = {"own": args.to == "bert_jax", "overwrite": args.overwrite}
    save_huggingface(args.output, checkpoint, card=card, dtype=args.dtype, **options)
    print_line(f"{args.output}: written")
    work = ["embed", "--output", "vectors.npz"]
    work = work if checkpoint.head == "none" else ["predict"]
    cli.print_next((*work, "--checkpoint", str(args.output), "--input", "FILE"))
