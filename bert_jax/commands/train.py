"""Pretrains BERT or its family with masked LM and next sentence prediction.

The same command resumes a stopped run. Each setting is a flag: --NAME=VALUE.

usage:
  bert_jax train --config tiny
  bert_jax train --config mini --data.corpus=TEXT --optimizer.learning_rate=3e-4
  bert_jax train --config further_pretraining --init_from=DIR --data.corpus=TEXT

flags:
  --config NAME              a file, or a name such as tiny or base:lamb
  --workdir DIR              folder or bucket of the run (runs/NAME)
  --print_config             print all settings of this run, and exit
  --help_settings            list the settings with their meaning, and exit
  --change_settings          resume with other settings, such as more steps
  --distributed              join the hosts of Cloud TPU, GKE, Slurm or MPI
  --coordinator_address A:P  other systems: host and port of process 0
  --num_processes N          other systems: number of processes
  --process_id I             other systems: number of this process, from 0
  --join_timeout S           seconds until all processes are connected (300)
  --heartbeat_timeout S      a process is lost after S seconds of silence (30)
  --step_timeout S           several processes: exit after S idle seconds (600)
"""

from pathlib import Path

from bert_jax.commands import cli
from bert_jax.commands.config_file import parse
from bert_jax.interop.find import CHECKPOINTS, check_checkpoint
from bert_jax.training.config import TrainConfig, train_config


def main(argv: list[str]) -> None:
    """Parses the command line and trains."""
    defaults = cli.JOB_FLAGS | {"change_settings": False}
    config, workdir, flags = parse(argv, __doc__, train_config, defaults)
    config.data.check_text()
    # A resumed run has its own parameters.
    if config.init_from and not Path(workdir, CHECKPOINTS).is_dir():
        check_checkpoint(config.init_from, "init_from")
    # Imported late, so that --help and a wrong command line answer quickly.
    from bert_jax.training.pretrain import pretrain

    cli.start(flags, workdir)
    pretrain(config, workdir, change_settings=flags["change_settings"])
    predict = "predict", "--checkpoint", workdir, "--text", "The [MASK] is here."
    start = f"--init_from={workdir}"
    if config.objective == TrainConfig.objective:
        cli.print_next(predict)
    cli.print_next(("finetune", "--config", "table", start, "--data.dir=DIR"))
