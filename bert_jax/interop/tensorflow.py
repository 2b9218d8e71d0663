"""Google's checkpoints: bert_model.ckpt.*, bert_config.json, vocab.txt."""

from pathlib import Path
from typing import Any

from bert_jax.data.tokenizer import find_vocabulary, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.names import guess_head, to_params
from bert_jax.interop.tensorflow_checkpoint import read_checkpoint
from bert_jax.model.config import BertConfig


def find_prefix(path: Path) -> Path | None:
    """The prefix of a checkpoint's files: ``path`` itself, or the one in the folder.

    None where there is none. Raises UserError for a folder of several.
    """
    if path.name and path.with_name(f"{path.name}.index").is_file():
        return path
    found = sorted(path.glob("*.index"))  # an index of shards ends in .index.json
    if len(found) > 1:
        names = ", ".join(file.stem for file in found)
        raise UserError(
            f"{path} holds {len(found)} TensorFlow checkpoints ({names}); name one, such "
            f"as {found[-1].with_suffix('')}"
        )
    return found[0].with_suffix("") if found else None


def read_tensorflow(prefix: Path, **config_changes: Any) -> Checkpoint:
    """Reads the checkpoint ``prefix`` and the files beside it.

    The optimizer's slots and the step are ignored, heads may be missing. The
    activation of bert_config.json is ambiguous; see BertConfig.from_dict.
    """
    folder = prefix.parent
    config = BertConfig.from_json(folder / "bert_config.json", **config_changes)
    variables = {
        name: array
        for name, array in read_checkpoint(prefix).items()
        if not _is_optimizer_state(name)
    }
    head = guess_head(variables, "google")
    try:
        # Without any head it is a pretraining checkpoint that was cut down.
        converted = to_params(
            variables,
            config,
            "google",
            head="pretraining" if head == "none" else head,
        )
    except UserError as error:
        raise UserError(f"{prefix}: {error}") from error
    labels = ()
    if head == "sequence" and "classifier" in converted.params:
        outputs = converted.params["classifier"]["bias"].shape[0]
        labels = tuple(f"LABEL_{i}" for i in range(outputs)) if outputs > 1 else ()
    return Checkpoint(
        config=config,
        params=converted.params,
        tokenizer=load_tokenizer(folder) if find_vocabulary(folder) else None,
        head=head if set(converted.params) > {"bert"} else "none",
        labels=labels,
        source="tensorflow",
        missing=converted.missing,
        unexpected=converted.unexpected,
    )


def _is_optimizer_state(name: str) -> bool:
    return name == "global_step" or name.endswith(("/adam_m", "/adam_v"))
