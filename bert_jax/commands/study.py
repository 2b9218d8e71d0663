"""Runs a study: variants of pretraining, fine-tuned and scored with several seeds.

It ends with a table in Markdown and JSON. The same command resumes it.

usage:
  bert_jax study table5:DATA
  bert_jax study table5:DATA --workdir runs/table5 --seeds 0,1
  bert_jax study runs/table5 --table

flags:
  STUDY          a name, a file with get_study(), or the folder of a study
  --seeds 0,1    only these seeds (all seeds of the study)
  --workdir DIR  folder of the study (runs/NAME)
  --table        run nothing; show the table of the finished runs

Processes with different seeds can run at the same time, each on its own GPU.
"""

from pathlib import Path

from bert_jax.commands import cli
from bert_jax.commands.config_file import load_file, named_studies
from bert_jax.errors import UserError
from bert_jax.files import check_local, ending, read_json
from bert_jax.settings import from_settings
from bert_jax.training.config import StudyConfig


def main(argv: list[str]) -> None:
    """Parses the command line and runs the study, or nothing, and shows the table."""
    seeds = {"type": _seeds, "default": ()}
    flags = {"workdir": "", "seeds": seeds, "table": False}
    parser = cli.argument_parser(__doc__, flags)
    parser.add_argument("study", metavar="STUDY")
    args = parser.parse_args(argv)
    config, folder = _open(args.study)
    # Imported late, so that --help and a wrong command line answer quickly.
    from bert_jax.training.study import Study

    workdir = args.workdir or folder
    check_local(workdir)
    study = Study(config, Path(workdir), seeds=args.seeds)
    if not args.table:
        cli.start()
        study.run()
    study.write_table()


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError as error:
        raise UserError(f"--seeds {text}, expected numbers such as 0,1") from error


def _open(source: str) -> tuple[StudyConfig, Path]:
    """A study, and the default of its folder."""
    path = Path(source)
    if path.is_dir():
        path = path / "study.json"
    if ending(path) == ".json":
        settings, folder = read_json(path, "the settings of a study"), path.parent
    else:
        settings = load_file(source, "get_study", named_studies())
        folder = Path("runs", Path(source.partition(":")[0]).stem)
    return from_settings(StudyConfig, settings, ""), folder
