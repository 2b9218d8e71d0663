"""Fills in each [MASK] of texts with the likeliest tokens and their probabilities.

--checkpoint: a pretrained checkpoint, one with an MLM head.
--text: a text with [MASK] in it, or several with a --text each; or --input: a text a line.
--format: an aligned table, the default on a terminal, or a JSON object for each text.

usage:
  bert_jax fill_mask --checkpoint W --text "The [MASK] is called once." [--top 5]
"""

from bert_jax.commands.predict import answer


def main(argv: list[str]) -> None:
    """Parses the command line, fills in and writes as it goes."""
    answer(argv, __doc__, family="fill_mask")
