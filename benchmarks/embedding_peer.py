"""Seconds to embed sentences as others do, on the same weights.

As embedding_step.py, which see. --system: sentence-transformers; or ONNX Runtime or
OpenVINO with the model, its mean and its scaling exported from PyTorch as one program,
fed with batches of like lengths, as sentence-transformers sorts them. In bfloat16
sentence-transformers holds bfloat16 weights and OpenVINO is asked for bfloat16 products;
ONNX Runtime has none on a CPU. It needs an environment of its own:
  pip install torch==2.13.0 transformers==5.23.0 sentence-transformers psutil \\
    onnx onnxscript onnxruntime openvino

usage:
  python benchmarks/embedding_peer.py --model DIR --texts FILE --vectors X.npy
    [--system sentence-transformers] [--count 4000] [--batch 32] [--max_length 256]
    [--dtype float32] [--singles 0] [--repeats 3]
"""

import importlib
import json
import logging
import tempfile
from argparse import Namespace
from collections.abc import Callable

import numpy as np
import torch
from workers import embedding_parser, process_bytes, time_embedding

Embed = Callable[[list[str]], np.ndarray]
Run = Callable[[dict[str, np.ndarray]], np.ndarray]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def sentence_transformers(options: Namespace) -> Embed:
    """PyTorch, in sentence-transformers."""
    library = importlib.import_module("sentence_transformers")
    # A plain BERT's folder gets mean pooling, as wanted.
    model = library.SentenceTransformer(
        str(options.model), model_kwargs={"dtype": options.dtype}
    )
    model.max_seq_length = options.max_length

    def embed(texts: list[str]) -> np.ndarray:
        tensors = model.encode(
            texts,
            batch_size=options.batch,
            normalize_embeddings=True,
            convert_to_tensor=True,
        )
        return tensors.float().cpu().numpy()

    return embed


class Pooled(torch.nn.Module):
    """A BERT, the mean of its tokens' vectors, scaled to length 1."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        """float32 (B, D)."""
        hidden = self.model(input_ids, attention_mask, token_type_ids)[0]
        mask = attention_mask[..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean)


def exported(options: Namespace, load: Callable[[str], Run]) -> Embed:
    """A runtime that ``load`` starts with the file of an ONNX program."""
    transformers = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModel.from_pretrained(options.model, dtype="float32")
    example = tokenizer(["a", "b c"], padding=True, return_tensors="pt")
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with tempfile.TemporaryDirectory() as folder:
        torch.onnx.export(
            Pooled(model).eval(),
            tuple(example[name] for name in INPUTS),
            f"{folder}/model.onnx",
            input_names=INPUTS,
            output_names=["vectors"],
            dynamic_shapes=dict.fromkeys(INPUTS, sizes),
            dynamo=True,
            verbose=False,
        )
        run = load(f"{folder}/model.onnx")

    def embed(texts: list[str]) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        parts = []
        for first in range(0, len(texts), options.batch):
            batch = tokenizer(
                [texts[i] for i in order[first : first + options.batch]],
                padding=True,
                truncation=True,
                max_length=options.max_length,
                return_tensors="np",
            )
            parts.append(run({name: batch[name].astype(np.int64) for name in INPUTS}))
        return np.concatenate(parts)[np.argsort(order)]

    return embed


def onnxruntime(options: Namespace) -> Embed:
    """ONNX Runtime with its own optimizations."""
    if options.dtype != "float32":
        raise SystemExit("ONNX Runtime has no bfloat16 products on a CPU")
    library = importlib.import_module("onnxruntime")

    def load(path: str) -> Run:
        session = library.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda batch: session.run(["vectors"], batch)[0]

    return exported(options, load)


def openvino(options: Namespace) -> Embed:
    """OpenVINO on all cores, one batch at a time."""
    library = importlib.import_module("openvino")

    def load(path: str) -> Run:
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[
                options.dtype
            ],
        }
        model = library.compile_model(path, "CPU", settings)
        return lambda batch: np.array(model(batch)[0])

    return exported(options, load)


SYSTEMS = {
    "sentence-transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def measure(options: Namespace) -> dict:
    """The results as a dictionary for JSON."""
    logging.disable(logging.WARNING)
    times = time_embedding(SYSTEMS[options.system](options), options)
    cuda = torch.cuda.is_available()
    library = importlib.import_module(options.system.replace("-", "_"))
    return times | {
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else process_bytes(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": {
            "torch": torch.__version__,
            options.system: library.__version__,
        },
    }


if __name__ == "__main__":
    flags = embedding_parser(__doc__)
    flags.add_argument("--system", choices=SYSTEMS, default="sentence-transformers")
    print(json.dumps(measure(flags.parse_args())))
