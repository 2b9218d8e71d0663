"""Makes this folder with torch and transformers, which the project does not need.

Tiny random models of families other than BERT, as transformers saves them. outputs_*.npz
contain their outputs for one batch of single texts, pairs and padding: hidden states,
logits, and gradients of a loss with respect to parameters of the embeddings and the first
layer.

    HF_HUB_OFFLINE=1 python tests/golden/families/make.py     (transformers 5.24)
"""

import collections
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent
# All sizes differ, so that a transposed dimension never fits.
SIZES = {
    "vocab_size": 41,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "initializer_range": 0.2,
}
ROBERTA = SIZES | {
    "max_position_embeddings": 17,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
DISTILBERT = {
    "vocab_size": 41,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 40,
    "max_position_embeddings": 15,
    "initializer_range": 0.2,
}
ELECTRA = SIZES | {"embedding_size": 24, "max_position_embeddings": 15}
# Texts of 12 tokens are longer than the windows, and layers differ: layer 0 and every n-th
# layer attend to all tokens.
ROTARY = SIZES | {"intermediate_size": 20, "max_position_embeddings": 15}
NO_IDS = {f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep")}
MODERNBERT = ROTARY | NO_IDS | {"pad_token_id": 1}
FAR = {"num_hidden_layers": 4, "local_attention": 4}
NEAR = {"num_hidden_layers": 3, "local_attention": 8, "global_attn_every_n_layers": 2}
BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
NOMIC = ROTARY | {"hidden_act": "silu", "pad_token_id": 1}
GTE = ROTARY | {"pad_token_id": 1}
SCALED = {
    "rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 4.0}
}
# The class of each folder, and its config.
MODELS = {
    "roberta_mlm": ("RobertaForMaskedLM", ROBERTA),
    "roberta_sequence": ("RobertaForSequenceClassification", ROBERTA),
    "roberta_choice": ("RobertaForMultipleChoice", ROBERTA),
    "roberta_span": ("RobertaForQuestionAnswering", ROBERTA),
    "xlm_roberta_none": ("XLMRobertaModel", ROBERTA | {"pad_token_id": 3}),
    "xlm_roberta_token": ("XLMRobertaForTokenClassification", ROBERTA),
    "distilbert_mlm": ("DistilBertForMaskedLM", DISTILBERT),
    "distilbert_none": ("DistilBertModel", DISTILBERT | {"sinusoidal_pos_embds": True}),
    "distilbert_sequence": ("DistilBertForSequenceClassification", DISTILBERT),
    "distilbert_choice": ("DistilBertForMultipleChoice", DISTILBERT),
    "distilbert_token": ("DistilBertForTokenClassification", DISTILBERT),
    "distilbert_span": ("DistilBertForQuestionAnswering", DISTILBERT),
    "electra_none": ("ElectraForPreTraining", ELECTRA),
    "electra_sequence": ("ElectraForSequenceClassification", ELECTRA),
    "electra_choice": ("ElectraForMultipleChoice", ELECTRA),
    "modernbert_mlm": ("ModernBertForMaskedLM", MODERNBERT | FAR),
    "modernbert_none": ("ModernBertModel", MODERNBERT | NEAR | BIASES),
    "modernbert_sequence": (
        "ModernBertForSequenceClassification",
        MODERNBERT | FAR | {"classifier_pooling": "mean"},
    ),
    "modernbert_choice": ("ModernBertForMultipleChoice", MODERNBERT | NEAR),
    "modernbert_token": ("ModernBertForTokenClassification", MODERNBERT | NEAR),
    "modernbert_span": ("ModernBertForQuestionAnswering", MODERNBERT | NEAR),
    "nomic_mlm": ("NomicBertForMaskedLM", NOMIC),
    "nomic_none": ("NomicBertModel", NOMIC),
    "nomic_sequence": ("NomicBertForSequenceClassification", NOMIC),
    "nomic_token": ("NomicBertForTokenClassification", NOMIC),
    "gte_mlm": ("GteForMaskedLM", GTE),
    "gte_none": ("GteModel", GTE | {"type_vocab_size": 0}),
    "gte_sequence": ("GteForSequenceClassification", GTE),
    "gte_token": ("GteForTokenClassification", GTE),
    "gte_scaled_none": ("GteModel", GTE | SCALED),
}
LABELS = 3


def make(name: str) -> transformers.PreTrainedModel:
    """A random model. Biases and LayerNorms are random as well, instead of 0 and 1."""
    class_name, settings = MODELS[name]
    kind = getattr(transformers, class_name)
    if name.endswith(("_sequence", "_token")):
        settings = settings | {"num_labels": LABELS}
    model = kind(kind.config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def batch(pad: int) -> dict[str, np.ndarray]:
    """A full row, a pair and two short rows. Padding tokens have the id ``pad``."""
    rng = np.random.default_rng(0)
    lengths = (12, 9, 5, 2)
    ids = rng.integers(5, SIZES["vocab_size"], (len(lengths), 12))
    mask = np.array([[1] * n + [0] * (12 - n) for n in lengths])
    types = np.zeros_like(ids)
    types[1, 4:9] = 1
    return {
        "input_ids": np.where(mask, ids, pad),
        "token_type_ids": types,
        "attention_mask": mask,
    }


def outputs(name: str, model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """Hidden states, logits and gradients, by name."""
    arrays = batch(model.config.pad_token_id)
    if name.startswith(("distilbert", "modernbert")) or name == "gte_none":
        del arrays["token_type_ids"]
    elif getattr(model.config, "type_vocab_size", 2) == 1:
        arrays["token_type_ids"] = arrays["token_type_ids"] * 0
    inputs = {key: torch.tensor(array) for key, array in arrays.items()}
    if name.endswith("_choice"):
        inputs = {key: array[None] for key, array in inputs.items()}
    output = model(**inputs, output_hidden_states=True)
    found = {"hidden_states": torch.stack(output.hidden_states)}
    mask = torch.tensor(arrays["attention_mask"])
    if name.endswith("_span"):
        found["logits"] = torch.stack([output.start_logits, output.end_logits], dim=-1)
    elif name.endswith("_none"):
        if getattr(output, "pooler_output", None) is not None:
            found["pooled"] = output.pooler_output
    else:
        found["logits"] = output.logits
    # The loss: the sum of sin(logits or last states) over tokens, without padding.
    last = found.get("logits", output.hidden_states[-1])
    values = torch.sin(last)
    if values.ndim == 3:
        values = values * mask[..., None]
    elif values.shape == mask.shape:
        values = values * mask
    values.sum().backward()
    grads = {
        key: parameter.grad for key, parameter in model.base_model.named_parameters()
    }
    found |= gradients(grads)
    return {f"{name}/{key}": value.detach().numpy() for key, value in found.items()}


def gradients(grads: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients of the embeddings' LayerNorm and of products of the first layer."""
    found = {}
    for key, grad in grads.items():
        if key.endswith(("embeddings.LayerNorm.bias", "embeddings.norm.weight")):
            found["gradient_norm"] = grad
        elif key.endswith(
            ("0.attention.self.query.weight", "0.attention.q_lin.weight")
        ):
            found["gradient_query"] = grad
        elif key.endswith("layers.0.attn.Wqkv.weight"):
            found["gradient_query"] = grad[: len(grad) // 3]
        elif key.endswith("layers.0.self_attn.q_proj.weight"):
            found["gradient_query"] = grad
        elif key.endswith("layers.0.mlp.Wi.weight"):
            found["gradient_intermediate"] = grad
    gate = grads.get("layers.0.mlp.gate_proj.weight")
    if gate is not None:  # the half that is activated first
        halves = [gate, grads["layers.0.mlp.up_proj.weight"]]
        found["gradient_intermediate"] = torch.cat(halves)
    return found


def main() -> None:
    """Writes all folders and files of outputs."""
    torch.manual_seed(0)
    golden = collections.defaultdict(dict)
    for name in MODELS:
        model = make(name)
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        model.save_pretrained(FOLDER / name)
        golden[name.partition("_")[0]] |= outputs(name, model)
    for family, arrays in golden.items():
        np.savez_compressed(FOLDER / f"outputs_{family}.npz", **arrays)


if __name__ == "__main__":
    main()
