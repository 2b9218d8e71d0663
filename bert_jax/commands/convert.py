"""Converts a BERT between Hugging Face's, Google's and our own form.

--checkpoint: a Hugging Face folder, Google's bert_model.ckpt (folder or prefix), a
workdir of bert_jax, or a name on a hub (org/name, org/name@revision). --output: a new
Hugging Face folder. --to bert_jax: also for a model that transformers has no class for;
only bert_jax reads its folder. No value changes.

usage:
  bert_jax convert --checkpoint A --output B [--to hf|bert_jax]
"""

from pathlib import Path

from bert_jax.commands import cli
from bert_jax.model.config import ACTIVATIONS
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, converts, and lists missing and unexpected tensors."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("--checkpoint", type=cli.checkpoint, required=True, metavar="A")
    parser.add_argument("--output", type=Path, required=True, metavar="B")
    parser.add_argument("--to", choices=("hf", "bert_jax"), default="hf")
    parser.add_argument(
        "--activation",
        choices=ACTIVATIONS,
        help="replaces the file's: Google's checkpoints since February 2019 mean "
        "gelu_tanh where bert_config.json says gelu",
    )
    args = parser.parse_args(argv)
    from bert_jax.interop.huggingface import save_huggingface
    from bert_jax.interop.load import load

    changes = {"activation": args.activation} if args.activation else {}
    checkpoint = load(args.checkpoint, **changes)
    config, origin = checkpoint.config, f"a checkpoint of {checkpoint.source}"
    print_line(
        f"{args.checkpoint}: {origin}; a BERT with {config.num_layers} layers, width "
        f"{config.hidden_size}, {config.num_heads} heads, {config.vocab_size:,} tokens; "
        f"head: {checkpoint.head}"
    )
    print_line(f"missing: {', '.join(checkpoint.missing) or 'none'}")
    unexpected = ", ".join(checkpoint.unexpected) or "none"
    print_line(f"unexpected, not converted: {unexpected}")
    if checkpoint.tokenizer is None:
        print_line("no vocabulary beside the weights, so none is written")
    card = f"Converted by `bert_jax convert` from {origin}."
    own = args.to == "bert_jax"
    save_huggingface(args.output, checkpoint, card=card, own=own)
    print_line(f"{args.output}: written")
