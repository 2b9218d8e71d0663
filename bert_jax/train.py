"""Pretrains BERT with masked LM and next sentence prediction.

Run it again with the same --workdir (default: runs/NAME OF THE CONFIG) and it goes on
where it stopped. Every setting of the config can be changed: --config.NAME=VALUE.

usage:
  python -m bert_jax.train --config experiments/tiny.py [--workdir D] [--config.seed=1]
"""

from bert_jax import cli
from bert_jax.config_file import parse


def main(argv: list[str]) -> None:
    """Parses the command line and trains."""
    settings, workdir = parse(argv, __doc__)
    # Imported late: --help and a wrong command line answer at once.
    from bert_jax.training.config import train_config
    from bert_jax.training.host_memory import keep_freed_memory
    from bert_jax.training.pretrain import pretrain

    keep_freed_memory()
    pretrain(train_config(settings), workdir)


if __name__ == "__main__":
    cli.run(main)
