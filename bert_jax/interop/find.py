"""Files of a checkpoint, in a folder or on a hub.

Nothing here imports JAX, so that commands report a wrong path or name immediately.
"""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from etils import epath
from tqdm import tqdm

from bert_jax.errors import UserError, listed, naming
from bert_jax.files import check_local, expanded, is_remote, open_remote, read_json
from bert_jax.interop.config_json import config_file, read_config

CHECKPOINTS = "checkpoints"  # folder of a run's training states
BEST = "best"  # folder of the best model of a fine-tuning run
SAFETENSORS, TORCH, INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
BILSTM = "bilstm.safetensors"  # a BiLSTM on an encoder, under our names
MODULES = "modules.json"  # the list of modules of sentence-transformers
# The settings of its module Transformer. Old versions name the file after the architecture.
LENGTHS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_xlm-roberta_config.json",
)
_ADAPTER = "adapter_config.json"  # the settings of an adapter of peft
# Files that from_hub downloads before the weights.
_SMALL = (
    *("config.json", "bert_config.json", "tokenizer_config.json", "tokenizer.json"),
    _ADAPTER,
    *("vocab.txt", "spiece.model", "added_tokens.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "sentencepiece.bpe.model"),
    *(MODULES, *LENGTHS, "config_sentence_transformers.json"),
)
# Names of files that bert_jax, transformers and sentence-transformers write when they save
# a model. "1_Pooling" is the folder of a module.
_SAVED = re.compile(
    "|".join(map(re.escape, (*_SMALL, BILSTM, "generation_config.json", "README.md")))
    + r"|training_args\.bin|\d+_\w+"
    + r"|(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?"
)
_SHARDS = "-?????-of-?????"
_WEIGHTS = (
    (SAFETENSORS, SAFETENSORS + INDEX, f"model{_SHARDS}.safetensors"),
    (TORCH, TORCH + INDEX, f"pytorch_model{_SHARDS}.bin"),
    ("*.ckpt.index", "*.ckpt.data-*"),
)
_WRITE_AGAIN = (
    "read it with transformers 4 and write it again: CLASS.from_pretrained(FOLDER, "
    "{option}=True).save_pretrained(NEW), with the CLASS in architectures of config.json"
)
# Weights of other libraries, and how to convert them to a folder that can be read.
_OTHER_WEIGHTS = {
    "tf_model.h5": _WRITE_AGAIN.format(option="from_tf"),
    "flax_model.msgpack": _WRITE_AGAIN.format(option="from_flax"),
}
# Folders of transformers' Trainer in its output_dir.
_TRAINER = re.compile(r"checkpoint-(\d+)")
_GOOGLE_FILE = re.compile(r"(.+)\.(?:index|meta|data-\d{5}-of-\d{5})")
_HUB_NAME = re.compile(
    r"(?P<name>(?:\w[\w.-]*/)?\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?"
)
_EXPECTED = (
    "expected a Hugging Face folder (config.json, model.safetensors), Google's "
    "bert_model.ckpt.* with bert_config.json, a workdir of bert_jax, or the name of a "
    "model on a hub, such as google-bert/bert-base-uncased"
)


class _Module(TypedDict):
    """A module in modules.json."""

    type: str
    path: str


def check_checkpoint(path: os.PathLike | str, setting: str = "checkpoint") -> None:
    """Raises UserError for a local path that is not a checkpoint.

    Hub names and URLs are checked when they are loaded. setting: name of the setting, for
    the message.
    """
    if not os.fspath(path):
        raise UserError(f"no checkpoint is given; set {setting}: {_EXPECTED}")
    if not hub_name(path) and not is_remote(path):
        workdir, _ = split_step(path)
        find_files(Path(workdir))


def split_step(path: os.PathLike | str) -> tuple[str, int | None]:
    """The workdir and the step of a path such as runs/base/checkpoints/20000.

    The step of any other path is None.
    """
    if is_remote(path):
        place = open_remote(path)
    else:
        place = epath.Path(path)
        if (place / "config.json").is_file():  # a model, not a training state
            return os.fspath(path), None
    if place.parent.name == CHECKPOINTS and place.name.isdecimal():
        return os.fspath(place.parent.parent), int(place.name)
    return os.fspath(path), None


def find_files(
    path: Path, run: Path | None = None
) -> tuple[Literal["bert_jax", "huggingface", "tensorflow"], Path]:
    """The format of the checkpoint at ``path``, and its workdir, folder or prefix.

    ``path`` may also be the file of the weights, or the output_dir of transformers'
    Trainer, whose newest checkpoint is used if the folder itself has no weights. run:
    remote workdir, if ``path`` is a copy of its small files. Raises UserError without a
    checkpoint.
    """
    finished = (path / BEST / "config.json").is_file()
    if not (finished or find_weights(path)) and ((run or path) / CHECKPOINTS).is_dir():
        return "bert_jax", path
    _check_adapter(path)
    # A workdir has its model in best/, and no weights of its own.
    for folder in (path, path / BEST, *_trainer_folders(path)):
        if find_weights(folder):
            return "huggingface", folder
    prefix = find_prefix(path)
    if prefix is not None:
        return "tensorflow", prefix
    if path.name.endswith((".safetensors", ".bin", INDEX)) and path.is_file():
        return "huggingface", _folder_of(path)
    similar = _similar_folder(path)
    if similar:
        raise UserError(f"{path} does not exist; did you mean {similar}?")
    raise UserError(f"{path} {_instead(path)}; {_EXPECTED}")


def _trainer_folders(path: Path) -> list[Path]:
    """The folders checkpoint-500 and so on of a Trainer, the newest first."""
    steps = {}
    for folder in path.glob("checkpoint-*"):
        match = _TRAINER.fullmatch(folder.name)
        if match:
            steps[folder] = int(match[1])
    return sorted(steps, key=steps.__getitem__, reverse=True)


def _folder_of(weights: Path) -> Path:
    """The folder of a file of weights.

    Raises UserError if other weights in the folder take precedence.
    """
    found = find_weights(weights.parent)
    if found is None:
        raise UserError(
            f"{weights} must be named {SAFETENSORS} or {TORCH}; rename it, and keep it in "
            "the folder of its config.json"
        )
    is_shard = False
    if found.name.endswith(INDEX):
        # "model.safetensors.index.json" is the index of "model-00001-of-00002.safetensors".
        is_shard = weights.name.startswith(f"{found.name.partition('.')[0]}-")
    if found != weights and not is_shard:
        raise UserError(
            f"{weights} is in the same folder as {found.name}, which takes precedence; "
            "copy it to another folder, with config.json and the vocabulary"
        )
    return weights.parent


def _check_adapter(folder: Path) -> None:
    """Raises UserError for an adapter of peft, which changes the weights of a model."""
    if (folder / _ADAPTER).is_file():
        raise UserError(
            f"{folder} is an adapter (peft), which needs its model; merge both with "
            "model.merge_and_unload().save_pretrained(NEW) of peft, and use NEW"
        )


def _instead(path: Path) -> str:
    """Why ``path`` is not a checkpoint, for a message."""
    if not path.exists():
        return "does not exist"
    if path.is_file():
        return "is a file"
    for name, advice in _OTHER_WEIGHTS.items():
        if (path / name).is_file():
            return f"contains only {name}; {advice}"
    return "contains no weights"


def _similar_folder(path: Path) -> Path | None:
    """A folder whose name is similar to a path that does not exist, in the same folder."""
    if path.exists() or not path.parent.is_dir():
        return None
    names = [other.name for other in path.parent.iterdir() if other.is_dir()]
    for name in difflib.get_close_matches(path.name, names, n=1):
        return path.with_name(name)
    return None


def find_weights(folder: Path) -> Path | None:
    """The weights of a Hugging Face folder, or their index. None without weights."""
    for name in (SAFETENSORS, SAFETENSORS + INDEX, TORCH, TORCH + INDEX):
        if (folder / name).is_file():
            return folder / name
    return None


def find_prefix(path: Path) -> Path | None:
    """The prefix of Google's files: ``path`` itself, or the only prefix in the folder.

    ``path`` may also be one of the files. None without these files. Raises UserError for a
    folder with several prefixes.
    """
    match = _GOOGLE_FILE.fullmatch(path.name)
    if match and path.is_file():
        path = path.with_name(match[1])
    if path.name and path.with_name(f"{path.name}.index").is_file():
        return path
    # An index of shards ends in .index.json.
    prefixes = [file.with_suffix("") for file in sorted(path.glob("*.index"))]
    if not prefixes:
        return None
    if len(prefixes) > 1:
        names = ", ".join(map(str, prefixes))
        raise UserError(f"{path} contains {names}; choose one")
    return prefixes[0]


def check_save(folder: os.PathLike | str, *, overwrite: bool, argument: str) -> None:
    """Raises UserError unless a folder is new or empty, or a saved model to overwrite.

    argument: how a user asks for ``overwrite``.
    """
    if not isinstance(folder, str | os.PathLike):
        actual = f"the folder is of type {type(folder).__name__}"
        raise UserError(f"{actual}; expected a path, such as 'my_model'")
    check_local(folder)
    folder = Path(expanded(folder))
    for place in (folder, *folder.parents):
        if place.is_file():
            raise UserError(f"{place} is a file; expected a folder for the model")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not overwrite:
        needed = f"expected a new folder, or {argument} to replace a saved model"
        raise UserError(f"{folder} is not empty; {needed}")
    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if not _SAVED.fullmatch(name)]
    if others:
        actual = f"it contains {listed(others)}"
    elif "config.json" not in names:
        actual = "it has no config.json"
    else:
        return
    needed = f"{argument} replaces only a saved model: use another folder"
    raise UserError(f"{folder} is not a saved model ({actual}); {needed}")


def list_modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module in modules.json. Empty without the file.

    The kind of a module of another package than sentence-transformers has its package.
    """
    path = folder / MODULES
    if not path.is_file():
        return []
    modules = read_json(path, "a list of modules", list[_Module])
    found = []
    for module in modules:
        package, _, kind = module["type"].rpartition(".")
        if package.partition(".")[0] != "sentence_transformers":
            kind = module["type"]  # code of the folder, which is not run
        found.append((kind, module["path"]))
    return found


def hub_name(path: os.PathLike | str) -> tuple[str, str | None] | None:
    """Name and revision of ``path`` on a hub, if it may be there.

    None for local files, for URLs and for paths that cannot be a name on a hub.
    """
    match = _HUB_NAME.fullmatch(os.fspath(path))
    if match is None or Path(path).exists() or find_prefix(Path(path)):
        return None
    return match["name"], match["revision"]


def from_hub(path: os.PathLike | str, *, weights: bool = True) -> Path:
    """The folder of a model ``NAME`` or ``NAME@REVISION`` in huggingface_hub's cache.

    Downloads missing files: config and vocabulary, and with ``weights`` the folders in
    modules.json and the weights as safetensors, or else PyTorch's or Google's files. Uses
    the cache if the hub does not answer. If a file is missing, the UserError contains the
    command that downloads it.
    """
    folder = _download(path, _SMALL)
    with naming(path):  # refuses other models before their weights are downloaded
        _check_adapter(folder)
        if config_file(folder).is_file():
            read_config(config_file(folder))
    if not weights:
        return folder
    parts = [f"{part}/*" for _, part in list_modules(folder) if part]
    for form in _WEIGHTS:
        folder = _download(path, [*_SMALL, *form, *parts, BILSTM])
        if find_weights(folder) or find_prefix(folder):
            return folder
    raise _download_error(path, "it has no weights, or the hub does not answer")


class _Bar(tqdm):
    """A progress bar for terminals only."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options | {"disable": None})


def _download(path: os.PathLike | str, files: Sequence[str]) -> Path:
    from huggingface_hub import errors, snapshot_download

    name, revision = hub_name(path)
    options = {"allow_patterns": files, "tqdm_class": _Bar}
    try:
        return Path(snapshot_download(name, revision=revision, **options))
    except Exception as error:  # the errors have no common type
        reason: object = error
        if isinstance(error, errors.LocalEntryNotFoundError):  # the hub did not answer
            reason = error.__cause__
        raise _download_error(path, reason) from error


def _download_error(path: os.PathLike | str, reason: object) -> UserError:
    """The error for a model that could not be downloaded."""
    from huggingface_hub import constants

    reason = " ".join(str(reason).split())[:400] or type(reason).__name__
    similar = _similar_folder(Path(path))
    if similar:
        failed = f"its download from {constants.ENDPOINT} failed ({reason[:80]})"
        return UserError(
            f"{path} does not exist here; did you mean {similar}? Otherwise, {failed}"
        )
    return UserError(
        f"{path} does not exist here, and its download from {constants.ENDPOINT} failed "
        f"({reason}); correct the path, or run 'hf download {hub_name(path)[0]} "
        f"--local-dir FOLDER' where there is a network and use FOLDER; {_EXPECTED}"
    )
