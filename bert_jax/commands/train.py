"""Pretrains BERT with masked LM and next sentence prediction.

--config: the name of a config, such as tiny, base:lamb or large, or a file. The same
command with the same --workdir (default: runs/NAME OF THE CONFIG) resumes a stopped run.
--change_settings resumes a run with other settings, such as more steps. config.json then
lists each change with its step.
Every setting can be changed: --config.NAME=VALUE, or --NAME=VALUE, such as --profile_steps
10:20. --print_config prints all settings of a run with their meaning, and ends. With
--init_from=CHECKPOINT a config needs no sizes of the model: the checkpoint has them,
and its vocabulary. The command is also python -m bert_jax.train.

On several hosts start the command on each host. Give --distributed if Cloud TPU, GKE, Slurm
or Open MPI started the job. Otherwise give --coordinator_address=HOST:PORT (of process 0),
--num_processes=N and --process_id=I. A SIGTERM to any process saves the run and ends all
processes with code 75.
  --join_timeout       seconds until all processes are connected (300)
  --heartbeat_timeout  seconds without a heartbeat after which a process is lost (30)
  --step_timeout       seconds without progress after which a process ends with code 75
                       (600; 0: never)

usage:
  bert_jax train --config tiny [--workdir D] [--seed=1]
  bert_jax train --config further --init_from=CHECKPOINT --data.corpus=TEXT
"""

import shlex
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.commands.config_file import parse
from bert_jax.interop.find import CHECKPOINTS, check_checkpoint
from bert_jax.training.config import TrainConfig, train_config


def main(argv: list[str]) -> None:
    """Parses the command line and trains."""
    own = cli.JOB_FLAGS | {"change_settings": False}
    config, workdir, flags = parse(argv, __doc__, train_config, own)
    config.data.check_text()
    # A resumed run has its own parameters.
    if config.init_from and not Path(workdir, CHECKPOINTS).is_dir():
        check_checkpoint(config.init_from, "init_from")
    # Imported late: --help and a wrong command line answer at once.
    from bert_jax.training.pretrain import pretrain

    cli.start(flags, workdir)
    pretrain(config, workdir, change_settings=flags["change_settings"])
    folder = shlex.quote(workdir)
    predict = f"bert_jax predict --checkpoint {folder} --text 'The [MASK] is here.'"
    cli.print_next(
        *[predict] * (config.objective == TrainConfig.objective),
        f"bert_jax finetune --config table --init_from={folder} --data.dir=DIR",
    )
