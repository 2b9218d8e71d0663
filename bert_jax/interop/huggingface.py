"""Hugging Face folders: config.json, weights, tokenizer files and a model card."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax.data.library import LibraryTokenizer
from bert_jax.data.text_arrays import NAMES_WITHOUT_TYPES
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import config_token_ids, find_tokenizer
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError, counted, listed, naming
from bert_jax.files import new_file, new_folder, write_json, write_text
from bert_jax.interop.checkpoint import (
    Checkpoint,
    Head,
    check_params,
    class_names,
    default_names,
)
from bert_jax.interop.config_json import (
    OWN,
    config_file,
    config_from_dict,
    config_to_dict,
    exported_config,
    read_config_json,
)
from bert_jax.interop.families import Family, find_family
from bert_jax.interop.families.tensors import join_tensors, split_tensors, with_prefix
from bert_jax.interop.find import BILSTM, SAFETENSORS
from bert_jax.interop.modules import (
    EXTRA,
    check_prompt,
    read_activation_fn,
    read_modules,
    vector_settings,
    write_modules,
)
from bert_jax.interop.names import (
    HEADS,
    Converted,
    from_params,
    guess_head,
    to_params,
)
from bert_jax.interop.weights import (
    Tensors,
    read_safetensors,
    read_weights,
    write_safetensors,
)
from bert_jax.model.config import BertConfig
from bert_jax.model.layers import sinusoids
from bert_jax.model.parameters import with_scan
from bert_jax.schema import check

_logger = logging.getLogger(__name__)
_CARD = Path(__file__).with_name("model_card.md")  # the template
# The line of Python in a card, by head. Models with other heads encode texts.
_ANSWERS = "model.predict(rows)  # a list, a data frame or the Path of a file"
_USES = dict.fromkeys(("sequence", "token", "choice", "span", "features"), _ANSWERS)
_WORDS = "bert/embeddings/word/embedding"
# Arrays in the files of some versions, whose values follow from the config.
_BUFFERS = ("embeddings.position_ids", "rotary_emb.inv_freq")
_POSITIONS = "bert/embeddings/position/embedding"


def read_huggingface(folder: Path | str, **changes: Any) -> Checkpoint:
    """Reads a folder that transformers or :func:`save_huggingface` wrote.

    Tensor names may have the prefix "bert." or not, and a LayerNorm may have gamma and
    beta. Raises UserError if the weight of the MLM decoder is not the word table, or if the
    tokenizer's padding token does not fit the positions.
    """
    folder = Path(folder)
    path = config_file(folder)
    settings = read_config_json(path)
    with naming(path):
        config = config_from_dict(settings, **changes)
    tensors = read_weights(folder)
    source, kept = "huggingface", {}
    with naming(folder):
        if settings.get("model_type") == OWN:
            source = "bert_jax"
            head, converted = _our_params(tensors, settings, config)
        else:
            head, converted = _their_params(tensors, settings, config)
            keys = find_family(config.model_type).kept
            kept = {key: settings[key] for key in keys if key in settings}
    _warn_unread(folder, converted.unexpected)
    params = converted.params
    if (folder / BILSTM).is_file():
        flat = _as_float32(read_safetensors(folder / BILSTM))
        params["bilstm"] = traverse_util.unflatten_dict(flat, sep="/")
        head = "features"
    tokenizer = find_tokenizer(folder)
    with naming(path):
        check_padding(settings, config, tokenizer)
    extra = settings.get("bert_jax") or {}
    modules, dense = read_modules(folder, config, tokenizer)
    if modules:
        extra = extra | {EXTRA: modules}
    elif head == "sequence":
        check_prompt(folder)
    if len(params) == 1:  # only the encoder
        if modules:
            head = modules["pooling"]
        elif source == "huggingface":
            head = "none"
    if dense:
        params["dense"] = dense
    id2label, problem_type = settings.get("id2label"), settings.get("problem_type")
    with naming(path):
        labels = class_names(params, head, id2label, problem_type)
    return Checkpoint(
        config=config,
        params=params,
        tokenizer=tokenizer,
        head=head,
        labels=labels,
        problem_type=problem_type,
        activation_fn=read_activation_fn(folder, settings),
        extra=extra,
        kept=kept,
        source=source,
        init_from=extra.get("init_from", ""),
        missing=converted.missing,
        unexpected=converted.unexpected,
    )


def _warn_unread(folder: Path, names: Sequence[str]) -> None:
    """Logs the names of tensors that are not read, such as a head of another kind."""
    if names:
        count = counted(len(names), "tensor")
        _logger.warning(f"{folder}: {count} not read: {listed(names)}")


def _as_float32(tensors: Tensors) -> Tensors:
    """The tensors in float32, the dtype of all parameters."""
    return {name: np.asarray(array, np.float32) for name, array in tensors.items()}


def _our_params(
    tensors: Tensors, settings: Mapping[str, Any], config: BertConfig
) -> tuple[str, Converted]:
    """The head and the parameters of a model under our names."""
    params = traverse_util.unflatten_dict(_as_float32(tensors), sep="/")
    head = settings.get("head")
    check(head, Head, "head")
    missing = check_params(params, config, head, ())  # save_huggingface wrote all parts
    return head, Converted(params, missing, ())


def _their_params(
    tensors: Tensors, settings: Mapping[str, Any], config: BertConfig
) -> tuple[str, Converted]:
    """The head and the parameters of a model under transformers' names."""
    if config.encoder != "transformer":
        actual = f"encoder={config.encoder!r} and no model_type={OWN!r}"
        raise UserError(f"{actual}; expected the config.json that bert_jax wrote")
    family = find_family(config.model_type)
    tensors = with_prefix(standard_names(tensors), family)
    tensors = split_tensors(tensors, family.split)
    _take_tied(tensors, family)
    if config.positions != "learned":
        # Only transformers needs this table.
        tensors.pop(family.name_of(_POSITIONS), None)
    head, expected = guess_head(tensors, config.model_type), None
    for architecture in settings.get("architectures") or ():
        start = family.model_types[config.model_type]
        known = family.classes.get(architecture.removeprefix(start))
        if known:
            head, expected = known
            break
    if head in ("sequence", "choice") and config.causal and settings.get("is_decoder"):
        raise UserError(
            "is_decoder=true in a classifier of texts, expected false: transformers reads "
            "its first token, and bert_jax the last token of a causal model"
        )
    return head, to_params(tensors, config, head=head, expected=expected)


def misfit(checkpoint: Checkpoint) -> str:
    """The options of a model that no class in transformers has. "" if there is a class."""
    config = checkpoint.config
    head, parts = _class(checkpoint)
    if config.encoder != "transformer":
        return f"encoder={config.encoder}"
    if head in ("sequence", "choice") and config.causal:
        return "a classifier on the last token"
    if "nsp" in parts and config.pooling == "mean":
        return "next sentence prediction from the mean of all tokens"
    exported = exported_config(config, head, parts)
    if exported is None:
        names = ", ".join(sorted(checkpoint.params))
        return (
            f"head {checkpoint.head!r}, parameters {names} and these options (token types, "
            "positions, window, LayerNorm, pooler)"
        )
    if head in ("sequence", "choice") and "pooling" in config_to_dict(exported):
        return "a classifier on the mean of all tokens"
    if not _counts_from_padding(exported, checkpoint.tokenizer):
        needed = "this family needs position_offset = id of the padding token + 1"
        padding = checkpoint.tokenizer.pad_id
        return (
            f"position_offset={config.position_offset} and a padding token with the id "
            f"{padding} ({needed})"
        )
    return ""


def _counts_from_padding(config: BertConfig, tokenizer: Tokenizer | None) -> bool:
    """Whether the tokens of a text have the same positions in transformers as here.

    Some families count the tokens other than pad_token_id, and start at pad_token_id + 1.
    If the padding token has another id, a token of the text may have the id pad_token_id.
    """
    padding = config_to_dict(config).get("pad_token_id")
    return padding is None or tokenizer is None or tokenizer.pad_id == padding


def check_padding(
    settings: Mapping[str, Any], config: BertConfig, tokenizer: Tokenizer | None
) -> None:
    """Raises UserError for a model whose positions transformers counts differently.

    settings: the content of config.json.
    """
    if settings.get("model_type") == OWN or _counts_from_padding(config, tokenizer):
        return
    padding = config.position_offset - 1
    raise UserError(
        f"pad_token_id={padding}, from which a {config.model_type} counts positions, but "
        f"the tokenizer's padding token has the id {tokenizer.pad_id}; expected the same "
        "id: correct config.json or the tokenizer"
    )


def _class(checkpoint: Checkpoint) -> tuple[str, set[str]]:
    """The head and the parts, besides the encoder, of a model's class in transformers."""
    head = checkpoint.head
    if head not in HEADS:
        head = "none"
    parts = {*checkpoint.params} - {"bert", "bilstm"}
    if "pooler" in checkpoint.params["bert"]:
        parts.add("pooler")
    if checkpoint.config.causal:
        parts.discard("nsp")  # this head is not trained
    return head, parts


def save_huggingface(
    directory: Path | str,
    checkpoint: Checkpoint,
    *,
    card: str | None = None,
    overwrite: bool = False,
    own: bool = False,
    dtype: str = "float32",
) -> None:
    """Writes a folder for AutoModel and AutoTokenizer, completely or not at all.

    checkpoint: parameters on host or devices, with or without stacked layers. Its ``extra``
      is written to config.json under "bert_jax", its modules to the files of
      sentence-transformers.
    card: Markdown about the origin of the weights, for the model card. None: the origin of
      the checkpoint, if it is known.
    overwrite: whether to replace a ``directory`` that is not empty.
    own: whether a model without a class in transformers is written under our names, which
      only ``bert_jax.load`` reads.
    dtype: dtype of the numbers in the files. config.json has float32, the dtype in which
      transformers computes the model.

    Raises UserError for a directory that is not empty, unless ``overwrite``, for a model
    without a class in transformers, unless ``own``, and for a number that is too large for
    ``dtype``.
    """
    config, head = checkpoint.config, checkpoint.head
    if "dense" in checkpoint.params:
        raise UserError("a model with Dense modules cannot be saved; copy its folder")
    params = jax.device_get(dict(checkpoint.params))
    bilstm = params.pop("bilstm", {})  # transformers has no architecture with it
    if config.causal:
        params.pop("nsp", None)  # this head is not trained
    reason = misfit(checkpoint)
    if reason and not own:
        raise UserError(
            f"transformers has no class with {reason}; use model.save(folder), or the form "
            "bert_jax of the command convert"
        )
    if reason:
        library = architecture = OWN
        settings = config_to_dict(config, model_type=BertConfig.model_type)
        settings |= {"architectures": [], "model_type": OWN, "head": head}
        tensors = _flat(with_scan(params, scan=False))
    else:
        library = "transformers"
        config, settings, tensors = _their_form(checkpoint, params)
        architecture = settings["architectures"][0]
    settings |= _more_settings(checkpoint)
    if checkpoint.tokenizer is not None:
        settings |= _token_ids(checkpoint, settings)
    modules = vector_settings(head, checkpoint.extra, config.max_positions)
    if modules is not None and reason:  # sentence-transformers cannot read this model
        settings["bert_jax"] = {**settings.get("bert_jax", {}), EXTRA: modules}
    if card is None and checkpoint.origin:
        card = f"Saved by bert_jax from {checkpoint.origin}."
    with new_folder(Path(directory), overwrite=overwrite) as folder:
        rounded = _rounded(tensors, dtype)
        write_safetensors(folder / SAFETENSORS, rounded, {"format": "pt"})
        if bilstm:
            write_safetensors(folder / BILSTM, _rounded(_flat(bilstm), dtype))
        if checkpoint.tokenizer is not None:
            tokenizer = checkpoint.tokenizer
            if head == "token" and isinstance(tokenizer, LibraryTokenizer):
                tokenizer = tokenizer.of_words()
            write_tokenizer(folder, tokenizer, config)
        if modules is not None and not reason:
            write_modules(folder, modules, config.hidden_size)
        write_json(folder / "config.json", settings)
        use = _USES.get(head, 'model.encode(["A text."])')
        if checkpoint.tokenizer is None:
            use = "model.config"
        text = _CARD.read_text("utf-8").format(
            library=library,
            architecture=architecture,
            size=sum(array.size for array in tensors.values()),
            config=config,
            source=card or "Not stated.",
            use=use,
        )
        write_text(folder / "README.md", text)


def _their_form(
    checkpoint: Checkpoint, params: dict[str, Any]
) -> tuple[BertConfig, dict[str, Any], Tensors]:
    """The config, the values of config.json and the tensors of a model in transformers."""
    head, parts = _class(checkpoint)
    config = exported_config(checkpoint.config, head, parts)
    family = find_family(config.model_type)
    rest = family.class_of(head, parts, config.causal)
    settings = config_to_dict(config, rest=rest)
    for key in family.kept:
        if key in checkpoint.kept:
            settings[key] = checkpoint.kept[key]
    params = _with_position_table(params, config)
    tensors = from_params(params, config, head=checkpoint.head)
    tensors = join_tensors(tensors, family.split)
    if rest == "Model":
        prefix = family.prefix
        tensors = {name.removeprefix(prefix): x for name, x in tensors.items()}
    return config, settings, tensors


def _more_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """The values of config.json besides the class and the options of the model."""
    head = checkpoint.head
    settings: dict[str, Any] = {"dtype": "float32"}
    if head in ("sequence", "token"):
        outputs = len(checkpoint.params["classifier"]["bias"])
        names = checkpoint.labels or default_names(outputs)
        settings["id2label"] = dict(enumerate(names))
        settings["label2id"] = dict(zip(names, range(outputs), strict=True))
    if checkpoint.activation_fn:
        settings["sentence_transformers"] = {"activation_fn": checkpoint.activation_fn}
    if checkpoint.problem_type is not None:
        settings["problem_type"] = checkpoint.problem_type
    extra = dict(checkpoint.extra)
    extra.pop(EXTRA, None)  # in the files of sentence-transformers
    if extra:
        settings["bert_jax"] = extra
    return settings


def _token_ids(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> dict[str, int]:
    """The id of padding, and special ids in config.json that were not read from a file."""
    ids = config_token_ids(checkpoint.tokenizer)
    new = {*settings} - {*checkpoint.kept}
    kept = {key: ids[key] for key in ids if key in new}
    return {"pad_token_id": checkpoint.tokenizer.pad_id} | kept


def _rounded(tensors: Tensors, dtype: str) -> Tensors:
    """The tensors in a dtype.

    Raises UserError if the dtype is smaller than a tensor's, and one of its numbers is too
    large for the dtype or not finite.
    """
    result, limit = {}, float(jnp.finfo(dtype).max)
    for name, array in tensors.items():
        if array.dtype.itemsize > jnp.dtype(dtype).itemsize:
            largest = np.abs(array).max(initial=0)
            if not np.isfinite(largest):
                raise UserError(
                    f"{name} has the number {largest}; train the model again"
                )
            if largest > limit:
                actual = f"{name} has the number {largest:.6g}"
                needed = f"numbers in {dtype} must be at most {limit:.6g}"
                raise UserError(f"{actual}; {needed}; use float32")
        result[name] = np.asarray(array, dtype, order="C")
    return result


def _flat(params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Parameters under our names."""
    flat = traverse_util.flatten_dict(params, sep="/")
    return {name: np.asarray(array, order="C") for name, array in flat.items()}


def _with_position_table(params: dict[str, Any], config: BertConfig) -> dict[str, Any]:
    """The parameters with the position table that BERT in transformers needs."""
    if config.positions in ("learned", "rotary"):
        return params
    table = sinusoids(config)
    if config.positions == "none":
        table = np.zeros_like(table)
    embeddings = params["bert"]["embeddings"] | {"position": {"embedding": table}}
    return params | {"bert": params["bert"] | {"embeddings": embeddings}}


def standard_names(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors without buffers. LayerNorms have weight and bias, not gamma and beta."""
    result = {}
    for name, array in tensors.items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        if not name.endswith(_BUFFERS):
            result[name] = array
    return result


def _take_tied(tensors: dict[str, np.ndarray], family: Family) -> None:
    """Removes copies of tied tensors. Raises UserError for a copy that differs."""
    for leaf, path in (("weight", _WORDS), ("bias", "mlm/output_bias")):
        name, tied = f"{family.decoder}.{leaf}", family.name_of(path)
        if name == tied:
            continue
        copy = tensors.pop(name, None)
        if copy is None or np.array_equal(copy, tensors.setdefault(tied, copy)):
            continue
        raise UserError(
            f"{name} differs from {tied} (tie_word_embeddings=false); expected an MLM head "
            "that shares the word table, or only the encoder, saved as transformers' Model "
            "class"
        )


def write_tokenizer(folder: Path, tokenizer: Tokenizer, config: BertConfig) -> None:
    """Writes the vocabulary and its settings for AutoTokenizer and bert_jax."""
    tokenizer.save(folder)
    with new_file(folder / "tokenizer.json") as file:
        file.write(tokenizer.to_json())
    positions = config.max_positions
    longest = min(tokenizer.model_max_length or positions, positions)
    settings = tokenizer.config() | {"model_max_length": longest}
    if isinstance(tokenizer, WordPieceTokenizer):
        settings |= {"tokenize_chinese_chars": True}
    if config.type_vocab_size < 2:
        # transformers' models have no vector for the type 1 of a second text.
        settings["model_input_names"] = NAMES_WITHOUT_TYPES
    write_json(folder / "tokenizer_config.json", settings)
