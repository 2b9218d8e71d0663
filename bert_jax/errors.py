"""The one exception that means "the user can fix this"."""

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Sequence

_LONGEST = 1600  # characters of a message
# Exit code EX_TEMPFAIL of a run that should be started again: it was stopped and saved its
# state, or another process of its job was lost.
PREEMPTED = 75


# Control characters other than line feeds, lone surrogates, and marks that change the
# direction of a line.
_STEERING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with escapes such as \\u001b for characters that steer a terminal.

    JSON stays JSON of the same value.
    """
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class UserError(Exception):
    """A one-line message with the expected value, the given value and the change to make.

    Commands print it after ``error:`` and exit with code 2. Library code raises it only for
    input, settings and files that a user controls. Control characters in a message are
    escaped, and a long message is cut.
    """

    def __init__(self, message: object = ""):
        text = printable(str(message)).replace("\n", "\\n")
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
        super().__init__(text)

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows instead of a traceback of many frames."""
        return [f"{type(self).__name__}: {self}"]


class DivergenceError(UserError):
    """A loss or gradient that is not a finite number."""


class StalledError(UserError):
    """A thread hangs, or is still working after a failed write.

    The process exits without waiting for the thread.
    """


class Preempted(Exception):  # noqa: N818 - a request, not an error
    """The run was asked to stop and saved its state, so that it can be resumed."""


# Names in transformers and sentence-transformers that are not similar to the names here,
# and our names for them.
_OTHER_NAMES = {
    "lr": ["learning_rate"],
    "num_train_epochs": ["epochs"],
    "per_device_train_batch_size": ["batch_size"],
    "per_device_eval_batch_size": ["eval_batch_size", "batch_size"],
    "max_grad_norm": ["clip_norm"],
    "logging_steps": ["log_every"],
    "save_steps": ["checkpoint_every"],
    "eval_strategy": ["evaluations"],
    "gradient_checkpointing": ["remat"],
    "output_dir": ["workdir", "output"],
    "model_name_or_path": ["init_from", "checkpoint"],
    "text": ["text_a"],
    "columns": ["text_a"],
    "train_dataset": ["train"],
    "eval_dataset": ["dev"],
    "compute_metrics": ["metrics"],
    "callbacks": ["callback"],
    "metric_for_best_model": ["main_metric"],
    "early_stopping_patience": ["patience"],
    "normalize_embeddings": ["normalize"],
    "truncate_dim": ["dimensions"],
    "output_value": ["pooling"],
    "prompt": ["query_prompt"],
    "prompt_name": ["query_prompt"],
    "corpus_prompt": ["document_prompt"],
    "top_k": ["top"],
    "top_n": ["top"],
    "torch_dtype": ["dtype"],
    "max_seq_length": ["max_length"],
    "text_pair": ["pairs"],
    "output_hidden_states": ["hidden_states"],
    "output_attentions": ["attentions"],
}
_NUMPY = "the arrays are numpy's; jax.numpy.asarray and torch.from_numpy convert them"
# Arguments of transformers and sentence-transformers that have no name here.
_HINTS = {
    "device": "JAX chooses devices by the environment variable JAX_PLATFORMS",
    "fp16": "the setting is compute.dtype: auto, bfloat16 or float32",
    "bf16": "the setting is compute.dtype: auto, bfloat16 or float32",
    "num_labels": "the labels of the task, or its training rows, determine the number",
    "tokenizer": "the checkpoint has its tokenizer; leave it out",
    "return_tensors": _NUMPY,
    "convert_to_numpy": _NUMPY,
    "convert_to_tensor": _NUMPY,
    "add_special_tokens": "tokenizer.encode(text) has no [CLS] and [SEP]",
    "return_offsets_mapping": "bert_jax.data.token_offsets.encode_with_offsets has them",
    "return_attention_mask": "the result always has attention_mask",
    "return_token_type_ids": "the result always has token_type_ids",
}


def hint(name: str, known: Sequence[str], shown: Callable[[str], str] = str) -> str:
    """A suggestion for an unknown name; empty if no known name is similar.

    A name in the same group takes precedence. shown: how a message writes a known name.
    """
    group, dot, leaf = name.rpartition(".")
    if leaf in _HINTS:
        return _HINTS[leaf]
    # The known names without their groups. The same group wins, then the first group.
    leaves = {}
    for other in reversed(known):
        leaves[other.rpartition(".")[2]] = other
    for other in known:
        if other.startswith(group + dot):
            leaves[other.removeprefix(group + dot)] = other
    candidates = list(_OTHER_NAMES.get(leaf, []))
    by_plain = {_plain(other): other for other in leaves}
    similar = difflib.get_close_matches(_plain(leaf), by_plain, n=1)
    if similar:
        candidates.append(by_plain[similar[0]])
    for candidate in candidates:
        if candidate in leaves:
            return f"did you mean {shown(leaves[candidate])}?"
    return ""


def _plain(name: str) -> str:
    """A name for comparisons: sst-2, SST2 and sst_2 are equal."""
    return re.sub(r"[\W_]", "", name.lower())


@contextlib.contextmanager
def naming(where: object) -> Iterator[None]:
    """Puts ``where`` in front of the message of a UserError that does not start with it."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(str(where)):
            raise
        raise UserError(f"{where}: {error}") from error


def listed(items: Sequence[str], most: int = 5) -> str:
    """One text, such as "a, b, c, d, e and 4 more"."""
    text = ", ".join(items[:most])
    if len(items) > most:
        text += f" and {len(items) - most} more"
    return text


def counted(number: int, noun: str) -> str:
    """Such as "1 row" or "2,000 rows"."""
    if number != 1:
        noun += "s"
    return f"{number:,} {noun}"
