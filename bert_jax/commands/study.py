"""Runs a study: variants of pretraining, fine-tuned and scored, over several seeds.

STUDY: a file with a function get_study (FILE.py or FILE.py:ARGUMENT), a name such as
table5, or the folder of a study. --workdir (default: runs/NAME OF THE STUDY) is its folder.
The same command resumes it. It ends with a table in Markdown and JSON.

--seeds: instead of the study's. Processes with different seeds can run at the same time,
each on its own GPU. --table: run nothing, and show what is finished.

usage:
  bert_jax study table5 [--workdir D] [--seeds 0,1]
"""

from pathlib import Path

from bert_jax.commands import cli
from bert_jax.commands.config_file import load_file, named_studies
from bert_jax.files import ending, read_json
from bert_jax.settings import from_settings
from bert_jax.training.config import StudyConfig


def main(argv: list[str]) -> None:
    """Parses the command line and runs the study, or nothing, and shows the table."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("study", metavar="STUDY")
    parser.add_argument("--workdir", type=Path, metavar="DIR")
    parser.add_argument("--seeds", type=_seeds, default=(), metavar="0,1,2")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args(argv)
    config, folder = _open(args.study)
    # Imported late: --help and a wrong command line answer at once.
    from bert_jax.training.sweep import Study

    study = Study(config, args.workdir or folder, seeds=args.seeds)
    if not args.table:
        cli.start()
        study.run()
    study.write_table(study.folder / "table.json")


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


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
