"""Fine-tunes BERT on a task: GLUE, tagging, multiple choice, question answering.

The best model on the development set lands in WORKDIR/best, a Hugging Face folder, and
WORKDIR/predictions holds the answers in the task's official form. --sweep runs the
config's grid of batch sizes, learning rates, epochs and seeds, and goes on where it
stopped. Every setting of the config can be changed, the folder of the data among them:
--config.data.dir=DIR. --workdir (default: runs/NAME OF THE CONFIG) is where the run lives;
the same command goes on where it stopped. Several hosts and SIGTERM: as with
python -m bert_jax.train.

usage:
  python -m bert_jax.finetune --config experiments/finetune/squad.py --config.init_from=DIR
"""

from bert_jax import cli
from bert_jax.config_file import parse


def main(argv: list[str]) -> None:
    """Parses the command line and fine-tunes."""
    settings, workdir, flags = parse(argv, __doc__, cli.JOB_FLAGS | {"sweep": False})
    # Imported late: --help and a wrong command line answer at once.
    from bert_jax.training.finetune_config import finetune_config
    from bert_jax.training.sweep import run_one, run_sweep

    config = finetune_config(settings)
    cli.start(flags)
    (run_sweep if flags["sweep"] else run_one)(config, workdir)


if __name__ == "__main__":
    cli.run(main)
