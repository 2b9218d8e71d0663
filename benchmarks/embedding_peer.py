"""The worker of embedding.py that times sentence-transformers, ONNX Runtime or OpenVINO.

The two runtimes get the model, the mean and the scaling as one program that PyTorch
exports, and batches of similar lengths, sorted as in sentence-transformers. In bfloat16,
sentence-transformers has bfloat16 weights and OpenVINO bfloat16 products. ONNX Runtime has
no bfloat16 products on a CPU.

It needs an environment of its own:
  pip install torch==2.13.0 transformers==5.24.0 sentence-transformers \\
    onnx onnxscript onnxruntime openvino
"""

import importlib
import logging
import tempfile

import numpy as np
import torch
from common import answer, process_bytes
from embedding_timing import time_embedding

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def sentence_transformers(options):
    """A function from texts to vectors. A plain BERT's folder gets mean pooling."""
    library = importlib.import_module("sentence_transformers")
    model = library.SentenceTransformer(
        options.model, model_kwargs={"dtype": options.dtype}
    )
    model.max_seq_length = options.max_length

    def embed(texts):
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

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        """float32 (B, D)."""
        hidden = self.model(input_ids, attention_mask, token_type_ids)[0]
        mask = attention_mask[..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean)


def exported(options, load):
    """A function from texts to vectors. load: starts a runtime with an ONNX file."""
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

    def embed(texts):
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


def onnxruntime(options):
    """ONNX Runtime with its own optimisations."""
    if options.dtype != "float32":
        raise SystemExit("ONNX Runtime has no bfloat16 products on a CPU")
    library = importlib.import_module("onnxruntime")

    def load(path):
        session = library.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda batch: session.run(["vectors"], batch)[0]

    return exported(options, load)


def openvino(options):
    """OpenVINO on all cores, one batch at a time."""
    library = importlib.import_module("openvino")
    precision = {"float32": "f32", "bfloat16": "bf16"}[options.dtype]
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}

    def load(path):
        model = library.compile_model(path, "CPU", settings)
        return lambda batch: np.array(model(batch)[0])

    return exported(options, load)


SYSTEMS = {
    "sentence-transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def measure(options):
    """The timings, and the peak memory of the device."""
    logging.disable(logging.WARNING)
    times = time_embedding(SYSTEMS[options.system](options), options)
    cuda = torch.cuda.is_available()
    library = importlib.import_module(options.system.replace("-", "_"))
    return times | {
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else process_bytes(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": {"torch": torch.__version__, options.system: library.__version__},
    }


if __name__ == "__main__":
    answer(measure)
