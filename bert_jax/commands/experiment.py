"""Runs a study: variants of pretraining, fine-tuned and scored, over several seeds.

STUDY: a file with a function get_study (FILE.py or FILE.py:ARGUMENT), a name such as
table5, or the folder of a study. --workdir (default: runs/NAME OF THE STUDY) is where it
lives; the same command goes on where it stopped. It ends with a table: text, JSON,
Markdown and a picture.

--seeds: instead of the study's. --jobs: parts that run at a time, each with its share of
the GPUs. --part: run only this part, such as pretrain/mlm-seed0. --table: run nothing, and
show what is finished. --change_settings: resume unfinished parts with other settings, such
as another mesh; the config.json of each part lists the changes.

usage:
  bert_jax experiment table5 [--workdir D] [--jobs N]
"""

import argparse
import dataclasses
import os
import sys
import threading
from pathlib import Path

from bert_jax import cli
from bert_jax.config_file import load_file, named_studies
from bert_jax.errors import UserError
from bert_jax.files import ending, read_json
from bert_jax.settings import from_settings
from bert_jax.training.config import StudyConfig


def main(argv: list[str]) -> None:
    """Parses the command line and runs the study, a part of it, or nothing."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("study", metavar="STUDY")
    parser.add_argument("--workdir", type=Path, metavar="DIR")
    parser.add_argument("--seeds", type=_seeds, metavar="0,1,2")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="(%(default)s)"
    )
    parser.add_argument("--part", metavar="NAME")
    # For the processes of --jobs, which exit when their standard input is closed.
    parser.add_argument("--end_with_stdin", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--change_settings", action="store_true")
    args = parser.parse_args(argv)
    if args.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    if args.jobs < 1:
        raise UserError(f"--jobs={args.jobs}, expected 1 or more")
    study, folder = _open(args.study)
    if args.seeds:
        study = dataclasses.replace(study, seeds=args.seeds)
    folder = args.workdir or folder
    # Imported late: --help and a wrong command line answer at once.
    from bert_jax.training.study import plan_study, run_part, run_study
    from bert_jax.training.study_table import write_table

    if args.jobs == 1 and not args.table:
        cli.start()
    if args.part:
        parts = plan_study(study, folder).parts
        run_part(args.part, parts, folder, change_settings=args.change_settings)
        return
    if not args.table:
        run_study(study, folder, jobs=args.jobs, change_settings=args.change_settings)
    write_table(study, folder)


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _seeds(text: str) -> tuple[int, ...]:
    if not all(map(str.isdecimal, text.split(","))):
        raise UserError(f"--seeds={text}, expected numbers such as 0,1,2")
    return tuple(map(int, text.split(",")))


def _open(source: str) -> tuple[StudyConfig, Path]:
    """A study, and the folder where it lives if nobody says another."""
    path = Path(source)
    if path.is_dir():
        path = path / "study.json"
    if ending(path) == ".json":
        settings, folder = read_json(path, "the settings of a study"), path.parent
    else:
        settings = load_file(source, "get_study", named_studies())
        folder = Path("runs", Path(source.partition(":")[0]).stem)
    return from_settings(StudyConfig, settings, ""), folder
