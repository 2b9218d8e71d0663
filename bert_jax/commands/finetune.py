"""Fine-tunes BERT on a task: GLUE, tagging, multiple choice, question answering.

WORKDIR/best is the best model on the development set, a Hugging Face folder.
WORKDIR/predictions has the answers in the task's official form. --sweep runs the
config's grid of batch sizes, learning rates, epochs and seeds. --workdir (default:
runs/NAME OF THE CONFIG) is the folder of the run. The same command resumes a run that was
stopped. --change_settings resumes an unfinished run with other settings. config.json then
lists each change with its step.

--config: the name of a config, such as sst2, squad2 or tagging, or a file. Every setting
can be changed, such as the folder of the data: --data.dir=DIR.
--print_config prints all settings of a run with their meaning, and ends. Several hosts and
SIGTERM work as with bert_jax train.

usage:
  bert_jax finetune --config squad --init_from=DIR --data.dir=DIR
"""

import shlex
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.commands.config_file import parse
from bert_jax.interop.find import check_checkpoint
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.config import finetune_config


def main(argv: list[str]) -> None:
    """Parses the command line and fine-tunes."""
    own = cli.JOB_FLAGS | {"sweep": False, "change_settings": False}
    config, workdir, flags = parse(argv, __doc__, finetune_config, own)
    # A finished run is reported from what it wrote.
    if not any(Path(workdir, name).exists() for name in ("results.json", "sweep.json")):
        check_checkpoint(config.init_from, "init_from")
        if not (flags["sweep"] and config.sweep.folds):  # folds need no file of dev
            FAMILIES[config.family](config.data).source.check()
    # Imported late: --help and a wrong command line answer at once.
    from bert_jax.training.sweep import run_one, run_sweep

    cli.start(flags, workdir)
    train = run_sweep if flags["sweep"] else run_one
    train(config, workdir, change_settings=flags["change_settings"])
    command = f"--checkpoint {shlex.quote(workdir)}"
    cli.print_next(
        f"bert_jax predict {command} --input FILE",
        f"bert_jax evaluate {command} --input FILE",
    )
