"""Runs a study: variants of pretraining, fine-tuned and scored, over several seeds.

STUDY: a file with a function get_study (FILE.py or FILE.py:ARGUMENT), a name such as
table5, or the folder of a study. --workdir (default: runs/NAME OF THE STUDY) is where it
lives; the same command resumes it. It ends with a table in Markdown and JSON and a picture.

--seeds: instead of the study's. Processes with different seeds can run at the same time,
each on its own GPU. --part: run only this part, such as pretrain/mlm-seed0. --table: run
nothing, and show what is finished. --change_settings: resume unfinished parts with other
settings, such as another mesh; the config.json of each part lists the changes.

usage:
  bert_jax study table5 [--workdir D] [--seeds 0,1]
"""

import dataclasses
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.commands.config_file import load_file, named_studies
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
    parser.add_argument("--part", metavar="NAME")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--change_settings", action="store_true")
    args = parser.parse_args(argv)
    config, folder = _open(args.study)
    if args.seeds:
        config = dataclasses.replace(config, seeds=args.seeds)
    # Imported late: --help and a wrong command line answer at once.
    from bert_jax.training.study import Study

    if not args.table:
        cli.start()
    changes = {"change_settings": args.change_settings}
    study = Study(config, args.workdir or folder, **changes)
    if args.part:
        study.run_part(args.part)
        return
    if not args.table:
        study.run()
    study.write_table()


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
