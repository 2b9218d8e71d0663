"""Fine-tunes a model on your own table or on a task, such as GLUE, NER or SQuAD.

WORKDIR/best is the best model. WORKDIR/predictions has its answers and errors.
The same command resumes a stopped run. Each setting is a flag: --NAME=VALUE.

usage:
  bert_jax finetune --config table --init_from=models/english --data.dir=reviews
  bert_jax finetune --config rte --init_from=runs/my_bert --data.dir=RTE --sweep
  bert_jax finetune --config squad2 --init_from=models/english --data.dir=squad

flags:
  --config NAME              a file, or a name such as table or sst2
  --workdir DIR              folder or bucket of the run (runs/NAME)
  --print_config             print all settings of this run, and exit
  --help_settings            list settings; with --config, data settings as well
  --sweep                    run the config's grid: sizes, rates, epochs, seeds
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
from bert_jax.interop.find import check_checkpoint
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.splits import check_splits
from bert_jax.training.config import finetune_config


def main(argv: list[str]) -> None:
    """Parses the command line and fine-tunes."""
    defaults = cli.JOB_FLAGS | {"sweep": False, "change_settings": False}
    config, workdir, flags = parse(argv, __doc__, finetune_config, defaults)
    # The results of a finished run are read from its own files.
    if not any(Path(workdir, name).exists() for name in ("results.json", "sweep.json")):
        check_checkpoint(config.init_from, "init_from")
        if not (flags["sweep"] and config.sweep.folds):  # folds need no dev file
            check_splits(config.data, FAMILIES[config.family](config.data).form)
    # Imported late, so that --help and a wrong command line answer quickly.
    from bert_jax.training.sweep import run_one, run_sweep

    cli.start(flags, workdir)
    train = run_sweep if flags["sweep"] else run_one
    train(config, workdir, change_settings=flags["change_settings"])
    for name in ("predict", "evaluate"):
        cli.print_next((name, "--checkpoint", workdir, "--input", "FILE"))
