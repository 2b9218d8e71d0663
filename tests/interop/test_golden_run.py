"""Our model, losses and optimizer against a run of google-research/bert.

tests/golden/google_bert contains the original's outputs for one batch and 20 updates,
computed with the tanh form of GELU and without dropout.
"""

import jax
import numpy as np
import pytest

from bert_jax.interop.config_json import read_config
from bert_jax.interop.names import from_params
from bert_jax.interop.tensorflow import huggingface_names, read_tensorflow
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import ComputeConfig
from bert_jax.model.parameters import with_scan
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch
from bert_jax.training.optimizer import (
    OptimizerConfig,
    bert_optimizer,
    make_schedule,
)
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import compile_step

pytestmark = pytest.mark.usefixtures("optimized")

STEPS = 20
OUR_NAMES = {
    "input_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "input_mask": "attention_mask",
    "masked_lm_positions": "mlm_positions",
    "masked_lm_ids": "mlm_ids",
    "masked_lm_weights": "mlm_weights",
}


@pytest.fixture(scope="module", autouse=True)
def _float32_products():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module")
def original(golden):
    with np.load(golden / "google_bert/golden.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def config(golden):
    return read_config(golden / "google_bert/bert_config.json", activation="gelu_tanh")


@pytest.fixture(scope="module")
def params(golden):
    return read_tensorflow(golden / "google_bert/bert_model.ckpt").params


@pytest.fixture(scope="module")
def batches(original):
    def batch(number):
        ours = {new: original[f"batch_{old}"][number] for old, new in OUR_NAMES.items()}
        labels = original["batch_next_sentence_labels"][number]
        return ours | {"nsp_labels": labels[:, 0]}

    return [batch(number) for number in range(STEPS)]


@pytest.fixture(scope="module")
def outputs(config, params, batches):
    """The outputs of our model for batch 0, under the original's names."""

    def forward(params, batch):
        output, inside = BertForPreTraining(config).apply(
            {"params": params},
            batch["input_ids"],
            batch["token_type_ids"],
            batch["attention_mask"],
            batch["mlm_positions"],
            deterministic=True,
            capture_intermediates=lambda module, _: module.name == "layer_0",
        )
        encoded = BertModel(config).apply(
            {"params": params["bert"]},
            batch["input_ids"],
            batch["token_type_ids"],
            batch["attention_mask"],
            deterministic=True,
        )
        mlm_log_probs_BMV = jax.nn.log_softmax(
            output.mlm_logits_BMW[..., : config.vocab_size]
        )
        layer_0 = inside["intermediates"]["bert"]["encoder"]["layer_0"]
        return {
            "sequence_output": encoded.sequence_BLD,
            "pooled_output": encoded.pooled_BD,
            "first_layer": layer_0["__call__"][0],
            "mlm_log_probs": mlm_log_probs_BMV.reshape(-1, config.vocab_size),
            "nsp_log_probs": jax.nn.log_softmax(output.nsp_logits_B2),
        }

    return jax.device_get(jax.jit(forward)(params, batches[0]))


@pytest.mark.parametrize(
    "name",
    [
        "first_layer",
        "sequence_output",
        "pooled_output",
        "mlm_log_probs",
        "nsp_log_probs",
    ],
)
def test_outputs_equal_the_originals(outputs, original, name):
    np.testing.assert_allclose(
        outputs[name], original[name], rtol=0, atol=2e-5, strict=True
    )


def train(config, compute, params, batches, mesh_config, devices):
    """The losses of 20 steps and the final variables."""
    objective = MlmNsp(BertForPreTraining(config, compute))
    settings = OptimizerConfig(learning_rate=1e-3, warmup_steps=5)
    optimizer = bert_optimizer(settings)
    mesh = make_mesh(mesh_config, jax.devices()[:devices])
    abstract = abstract_state(objective, optimizer, mesh)
    state = init_state(objective, optimizer, abstract, seed=0, initial_params=params)
    step = compile_step(objective, settings, abstract)
    schedule = make_schedule(settings, STEPS)
    losses = []
    for batch in batches:
        state, sums = step(state, put_batch(batch, mesh), schedule)
        mlm = sums["mlm_loss"] / (sums["mlm_weight"] + 1e-5)
        losses.append((float(mlm), float(sums["nsp_loss"] / sums["nsp_weight"])))
    final = from_params(jax.device_get(state.params), config)
    return np.array(losses), final


@pytest.mark.parametrize(
    ("mesh_config", "devices", "scan_layers"),
    [
        (MeshConfig(), 1, False),
        pytest.param(MeshConfig(), 8, False, marks=pytest.mark.long),
        pytest.param(
            MeshConfig(replica=2, data=2, model=2), 8, True, marks=pytest.mark.long
        ),
    ],
    ids=["one device", "data=8", "replica=2,data=2,model=2, scanned"],
)
def test_twenty_updates_equal_the_originals(
    golden, config, batches, original, mesh_config, devices, scan_layers
):
    compute = ComputeConfig(scan_layers=scan_layers)
    prefix = golden / "google_bert/bert_model.ckpt"
    params = with_scan(read_tensorflow(prefix).params, scan_layers)
    before = from_params(params, config)
    losses, final = train(config, compute, params, batches, mesh_config, devices)
    np.testing.assert_allclose(losses[:, 0], original["mlm_loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(losses[:, 1], original["nsp_loss"], rtol=0, atol=1e-5)
    names = [name for name in original if name.startswith("final/")]
    assert len(names) == 5
    for name in names:
        ((variable, theirs),) = huggingface_names(
            {name.removeprefix("final/"): original[name]}
        ).items()
        np.testing.assert_allclose(
            final[variable], theirs, rtol=0, atol=1e-5, strict=True
        )
        change = np.max(np.abs(theirs - before[variable]))
        assert change > 1e-3, f"{variable} hardly changed, so the comparison is empty"
