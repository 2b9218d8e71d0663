"""``python -m bert_jax.train``, which is ``bert_jax train``."""

from bert_jax.commands import cli
from bert_jax.commands.train import main

if __name__ == "__main__":
    cli.run(main)
