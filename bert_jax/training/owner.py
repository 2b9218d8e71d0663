"""Which run a workdir belongs to: config.json, and the settings that differ from it.

config.json contains the settings that the run uses now. If a run is resumed with other
settings, the list "changes" gets an entry: the last step with the old settings, and the old
and the new value of each changed setting.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_jax.data.phases import Phase
from bert_jax.data.pipeline import with_mask_rate
from bert_jax.errors import UserError, naming
from bert_jax.files import read_json, reading
from bert_jax.progress import Log
from bert_jax.runs import RESULTS
from bert_jax.settings import differences, from_settings, to_dict
from bert_jax.tasks.families import with_usual_columns
from bert_jax.training.config import finetune_config, train_config
from bert_jax.training.workdir import RunFolder

# Settings, or groups of settings, of a finished run that do not change its scores.
NO_EFFECT = (
    "mesh",
    "accumulation",
    "log_every",
    "checkpoint_every",
    "profile_steps",
    "profile_port",
    "tracker",
    "data_timeout",
    "eval_batch_size",
    "keep_checkpoints",
    "keep_checkpoints_every",
    "prompts",
    "data.threads",
    "data.prefetch",
    "data.packing",
)

# Settings that name places. Places with the same content count as equal.
PLACES = (
    "init_from",
    "data.path",
    "data.mixture",
    "data.dir",
    "data.train",
    "data.dev",
    "data.test",
)
_CORPUS = ("data.corpus",)
# Entries of config.json that are not settings: facts about the data, and the changes.
_NOTES = ("text", "rows", "changes", "labels", "content", "start")

Change = tuple[str, Any, Any]  # name, old value, new value

# Checksums in config.json that must not change, not even with change_settings. With
# another vocabulary the parameters have no meaning. With other rows the best score has no
# meaning.
_FIXED = ("text.vocabulary", "rows")


def check_folder(
    folder: RunFolder, identity: dict[str, Any], change_settings: bool
) -> None:
    """Raises UserError if the workdir contains a checkpoint, or a run with other settings.

    identity: the settings. change_settings: whether a run may have other settings.
    """
    path = folder.local / "config.json"
    if path.exists() and "hidden_size" in read_json(path, "the config of a run"):
        raise UserError(f"{path} is the config of a checkpoint; use another workdir")
    if folder.has_run() and not change_settings:
        check_owner(folder.local, identity)


def check_owner(
    workdir: Path, identity: dict[str, Any], free: tuple[str, ...] = ()
) -> None:
    """Raises UserError if ``workdir`` contains a run with other settings.

    See :func:`owner_changes`.
    """
    changes = owner_changes(workdir, identity, free)
    names = [name for name, *_ in changes]
    if "data.dir" in names and "rows" not in names and _has_rows_of_0_2(workdir):
        advice = "finish it with version 0.2, or use another workdir"
        raise UserError(
            f"{workdir} contains a run of version 0.2 on Python rows or on a fold, whose "
            f"checksums differ from this version's; {advice}"
        )
    if changes:
        change = "change_settings=True to change the run"
        advice = f"use its settings, another workdir, or {change}"
        if (workdir / RESULTS).exists():
            advice = (
                f"use another workdir, with init_from={workdir} to continue its model"
            )
        actual = f"{workdir} contains a run with other settings"
        raise UserError(f"{actual} ({shown(changes)}); {advice}")


def check_rows(workdir: Path, content: str) -> None:
    """Raises UserError if a finished run in ``workdir`` had other rows.

    content: ``Splits.checksum`` of the task. A run of 0.2 has none.
    """
    path = workdir / "config.json"
    if not path.exists():
        return
    before = read_json(path, "the config of a run").get("content")
    if before is not None and before != content:
        advice = "put the files back, or use another workdir"
        actual = f"{workdir} contains a run whose rows differ from its files"
        raise UserError(f"{actual}; {advice}")


def check_same_start(workdir: Path, start: int) -> None:
    """Raises UserError if a finished run in ``workdir`` started from other parameters.

    start: their checksum. A run of 0.2 has none.
    """
    path = workdir / "config.json"
    before = read_json(path, "the config of a run").get("start")
    if before is not None and before != start:
        advice = "put the old weights back, or use another workdir"
        actual = f"the weights of init_from changed after the run in {workdir}"
        raise UserError(f"{actual}; {advice}")


def owner_changes(
    workdir: Path, identity: dict[str, Any], free: tuple[str, ...] = ()
) -> list[Change]:
    """The settings that differ from the settings of the run in ``workdir``.

    identity: the settings. free: settings that may differ, see :func:`changed_settings`.
    """
    path = workdir / "config.json"
    expected = "the config of a run; put it back, or use another workdir"
    with naming(path), reading(path, expected):
        old = read_json(path, expected)
        if "phases" in identity and "family" in old:
            raise UserError("the config of a fine-tuning; use another workdir")
        if "family" in identity and "phases" in old:
            raise UserError("the config of a pretraining; use another workdir")
        return changed_settings(old, identity, free)


def _has_rows_of_0_2(workdir: Path) -> bool:
    """Whether a run of version 0.2 has rows from Python or of a fold, not from files."""
    settings = read_json(workdir / "config.json", "the config of a run")
    of_rows = str(settings.get("data", {}).get("dir", "")).startswith("rows:")
    return of_rows and "labels" not in settings


def with_changes(
    identity: dict[str, Any], before: dict[str, Any], first: int, total: int, log: Log
) -> dict[str, Any]:
    """The content of config.json of a resumed run: the settings, and all their changes.

    before: config.json at step ``first``, at which the run resumes. total: number of steps
    of the whole run. Raises UserError for a change of the vocabulary or rows.
    """
    history = before.get("changes", [])
    changes = changed_settings(before, identity)
    fixed = [change for change in changes if change[0] in _FIXED]
    if fixed:
        kept = "a run keeps its vocabulary and rows; use another workdir"
        raise UserError(f"{shown(fixed)}: {kept}")
    if changes:
        steps = f"the learning rate follows the schedule of {total:,} steps"
        log(f"settings change after step {first:,}: {shown(changes)}; {steps}")
        values = {name: {"from": old, "to": new} for name, old, new in changes}
        history = [*history, {"step": first, "settings": values}]
    if history:
        identity = identity | {"changes": history}
    return identity


def changed_settings(
    old: dict[str, Any], new: dict[str, Any], free: tuple[str, ...] = ()
) -> list[Change]:
    """The settings of a run that differ between two versions of its config.json.

    A setting that ``old`` does not have gets its default. "rows" and each value of "text",
    which describe the data, count if both have them. Two names of a place are equal if the
    place or its content is the same. The weights of ``init_from`` count if both have their
    checksum. checkpoint_every and prompts do not count. free: settings, or groups of
    settings, that may differ. Raises UserError if ``old`` has a setting that no longer
    exists.
    """
    if "data" in old and "family" in old and "labels" not in old:  # written by 0.2
        old = old | {"data": with_usual_columns(old["data"])}
        new = new | {"data": with_usual_columns(new["data"])}
    contents = old, new
    if "family" in new or "phases" in new:
        read = finetune_config if "family" in new else train_config
        settings = {name: old[name] for name in old if name not in _NOTES}
        old = old | to_dict(read(settings))
    if "phases" in new:
        old, new = _with_usual_places(old), _with_usual_places(new)
    # checkpoint_every changes only what is lost after a kill. Its default was a number in
    # version 0.2.0. The prompts of a pretraining are filled in after its last step.
    unused = ("checkpoint_every", "prompts")
    notes = ("changes", "sweep", "labels", "content", "start")
    same = dict.fromkeys((*unused, *notes))
    changes = []
    for change in differences(old | same, new | same):
        name, before, after = change
        is_place = name in (*PLACES, *_CORPUS)
        is_free = any(name == one or name.startswith(f"{one}.") for one in free)
        if is_free or _is_unknown(*change):
            continue
        if is_place and _path(before) == _path(after):
            continue
        if name in PLACES and _same_content(name, *contents):
            continue
        changes.append(change)
    before, after = (content.get("start") for content in contents)
    is_known = before is not None and after is not None
    if (
        is_known
        and before != after
        and "init_from" not in [name for name, *_ in changes]
    ):
        changes.append(("checksum of init_from", before, after))
    return changes


def _with_usual_places(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a pretraining with max_predictions=0 wherever 0 means the same.

    In version 0.2.0 the function pretrain wrote the number that follows from the mask rate.
    """
    rate = settings["data"]["examples"]["mask_rate"]
    eval_rate = settings["eval_mask_rate"]
    phases = []
    for i, values in enumerate(settings["phases"]):
        phase = from_settings(Phase, values, f"phases[{i}]")
        usual = replace(phase, max_predictions=0)
        evaluated = with_mask_rate(phase, rate, eval_rate)
        usually_evaluated = with_mask_rate(usual, rate, eval_rate)
        is_same = usual.places(rate) == phase.places(rate)
        if is_same and usually_evaluated.places(rate) == evaluated.places(rate):
            phase = usual
        phases.append(to_dict(phase))
    return settings | {"phases": phases}


def _is_unknown(name: str, old: Any, new: Any) -> bool:
    """Whether one of two versions lacks this value of the data.

    Version 0.2.0 has no fingerprint of the text.
    """
    of_data = name == "rows" or name.startswith("text.")
    return of_data and (old is None or new is None)


def _path(place: Any) -> Any:
    """The absolute path of a place, or of each place in a list. None for no place."""
    if isinstance(place, list):
        return [*map(_path, place)]
    return Path(place).resolve() if place else None


def _same_content(name: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether the place of a setting has the same content in two versions of config.json.

    A run of 0.2 has no checksum of the checkpoint, and "rows" is its checksum of the data.
    """
    key = "content" if "content" in old else "rows"
    if name == "init_from":
        key = "start"
    elif name in ("data.path", "data.mixture"):
        key = "content"
        old, new = old.get("text", {}), new.get("text", {})
    return old.get(key) is not None and old.get(key) == new.get(key)


def shown(changes: Iterable[Change]) -> str:
    """Changes in one line."""
    return "; ".join(f"{name}: {old!r} -> {new!r}" for name, old, new in changes)
