"""Pretrains BERT with masked LM and next sentence prediction.

Run it again with the same --workdir (default: runs/NAME OF THE CONFIG) and it goes on
where it stopped. Every setting of the config can be changed: --config.NAME=VALUE.

On several hosts start it on each of them: with --distributed where Cloud TPU, GKE, Slurm
or Open MPI started the job; elsewhere with --coordinator_address=HOST:PORT (of process 0),
--num_processes=N and --process_id=I. --join_timeout (300 s): how long to wait for the
others. SIGTERM to any of them saves and ends all with code 75.

usage:
  python -m bert_jax.train --config experiments/tiny.py [--workdir D] [--config.seed=1]
"""

from bert_jax import cli
from bert_jax.config_file import parse


def main(argv: list[str]) -> None:
    """Parses the command line and trains."""
    settings, workdir, flags = parse(argv, __doc__, cli.JOB_FLAGS)
    # Imported late: --help and a wrong command line answer at once.
    from bert_jax.training.config import train_config
    from bert_jax.training.pretrain import pretrain

    config = train_config(settings)
    cli.start(flags)
    pretrain(config, workdir)


if __name__ == "__main__":
    cli.run(main)
