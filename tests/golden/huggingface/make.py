"""Makes this folder with torch and transformers, which the project does not need.

Tiny random models with every head, as saved by transformers, and their outputs for one
batch (golden.npz). One model is also saved in shards of bfloat16, and as
pytorch_model.bin in both forms of torch.save.

    HF_HUB_OFFLINE=1 python tests/golden/huggingface/make.py     (transformers 5.23)
"""

import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent
# All sizes differ, so that a transposed dimension never fits.
CONFIG = dict(
    vocab_size=61,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=19,
    type_vocab_size=2,
    initializer_range=0.3,  # so that every layer matters
)
LABELS = ["O", "B-person", "I-person", "B-place", "I-place"]
MODELS = {
    "pretraining": transformers.BertForPreTraining,
    "none": transformers.BertModel,
    "masked_lm": transformers.BertForMaskedLM,
    "sequence": transformers.BertForSequenceClassification,
    "token": transformers.BertForTokenClassification,
    "choice": transformers.BertForMultipleChoice,
    "span": transformers.BertForQuestionAnswering,
}
TEXTS = [
    "The cat's caf\u00e9, na\u00efve \u4e2d\u6587 CATs?",
    "a bee see",
    "xyz [MASK] be.",
]


def vocabulary() -> list[str]:
    """Special tokens, and the tokens of TEXTS."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += sorted(set("abcefinstvyz.,'?\u4e2d\u6587"))
    tokens += [f"##{c}" for c in "abcdefghinstvy"] + ["the", "cat", "bee", "##fe"]
    return tokens + [f"[unused{i}]" for i in range(CONFIG["vocab_size"] - len(tokens))]


def make(name: str) -> transformers.PreTrainedModel:
    """A random model. Biases and LayerNorms are random as well, instead of 0 and 1."""
    changes = {}
    if name in ("sequence", "token"):
        changes["id2label"] = dict(enumerate(LABELS))
        changes["label2id"] = {label: i for i, label in enumerate(LABELS)}
    model = MODELS[name](transformers.BertConfig(**CONFIG | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def causal() -> None:
    """Writes causal.npz: outputs of the folder masked_lm as a left-to-right model."""
    golden = np.load(FOLDER / "golden.npz")
    model = transformers.BertLMHeadModel.from_pretrained(
        FOLDER / "masked_lm", is_decoder=True
    ).eval()
    names = ("input_ids", "token_type_ids", "attention_mask")
    with torch.no_grad():
        logits = model(**{n: torch.tensor(golden[n]) for n in names}).logits
    np.savez(FOLDER / "causal.npz", logits=logits.numpy())


def pre_norm() -> None:
    """Writes the folder pre_norm, and its outputs for the batch to pre_norm.npz."""
    torch.manual_seed(0)
    config = transformers.MegatronBertConfig(**CONFIG)
    model = transformers.MegatronBertForPreTraining(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    shutil.rmtree(FOLDER / "pre_norm", ignore_errors=True)
    model.save_pretrained(FOLDER / "pre_norm")
    golden = np.load(FOLDER / "golden.npz")
    names = ("input_ids", "token_type_ids", "attention_mask")
    inputs = {name: torch.tensor(golden[name]) for name in names}
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    np.savez_compressed(
        FOLDER / "pre_norm.npz",
        hidden_states=torch.stack(output.hidden_states).numpy(),
        prediction_logits=output.prediction_logits.numpy(),
        seq_relationship_logits=output.seq_relationship_logits.numpy(),
    )


def main() -> None:
    """Writes all folders, golden.npz, causal.npz and pre_norm.npz."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": rng.integers(5, CONFIG["vocab_size"], (3, 11)),
        "token_type_ids": np.repeat([[0] * 6 + [1] * 5], 3, 0),
        "attention_mask": np.array([[1] * 11, [1] * 8 + [0] * 3, [1] * 3 + [0] * 8]),
    }
    inputs = {name: torch.tensor(array) for name, array in batch.items()}
    golden = dict(batch)
    for name in MODELS:
        model = make(name)
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        shaped = inputs
        if name == "choice":  # three choices of one row
            shaped = {key: value[None] for key, value in inputs.items()}
        if name == "pretraining":
            save_other_forms(model)
        # In float32 the outputs have errors of 8e-6, and ours may have as much.
        with torch.no_grad():
            output = model.double()(**shaped, output_hidden_states=True)
        for key, value in output.items():
            if key == "hidden_states":
                value = torch.stack(value)
            golden[f"{name}/{key}"] = value.float().numpy()
    np.savez_compressed(FOLDER / "golden.npz", **golden)
    causal()
    pre_norm()
    save_tokenizer()


def save_other_forms(model: transformers.PreTrainedModel) -> None:
    """Writes shards of bfloat16, and the two forms of pickle."""
    for name in ("sharded", "pickle"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        (FOLDER / name).mkdir()
    for form, zipped in (("zip", True), ("stream", False)):
        torch.save(
            model.state_dict(),
            FOLDER / "pickle" / f"{form}.bin",
            _use_new_zipfile_serialization=zipped,
        )
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half.to(torch.bfloat16).save_pretrained(FOLDER / "sharded", max_shard_size="10KB")


def save_tokenizer() -> None:
    """Writes vocab.txt in the old form, and the files of today's transformers."""
    folder = FOLDER / "tokenizer"
    shutil.rmtree(folder, ignore_errors=True)
    tokens = vocabulary()
    tokenizer = transformers.BertTokenizer(
        vocab={token: i for i, token in enumerate(tokens)}
    )
    tokenizer.save_pretrained(folder)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    print("\n".join(f"{text!r}: {row}" for text, row in zip(TEXTS, ids, strict=True)))


if __name__ == "__main__":
    main()
