"""Pretraining objectives (paper, table 5, and ELECTRA) at a size for two CPU cores.

What: BERT's two objectives; masked LM without NSP; left to right as GPT; the same with a
  BiLSTM on top in fine-tuning; two LSTMs as ELMo; ELECTRA's replaced tokens. The model has
  2 layers of width 128. The first variant learns from 10 million tokens, and the others
  compute as many floating-point operations. A model of this size learns more than the
  frequencies of tokens only with short sequences first, 40% of the tokens masked (ELECTRA:
  25%) and LayerNorm before attention and feed-forward. Each is fine-tuned on 8,000 rows of
  SST-2, on WNUT-17 and on 2,000 questions of SQuAD, and scored on the first 40 pairs of
  each set of BLiMP.
On: two CPU cores, two seeds at a time; 30 MB of Wikipedia and 16 MB of books.
Result: see docs/results.md. In the paper BASE loses 0.5 points of MNLI without NSP; left to
  right it loses 2.3 points there and 10.7 points of F1 on SQuAD, 3.6 with a BiLSTM.
Before: a folder DATA with glue/SST-2, ner/wnut17 and squad/dev-v1.1.json (which is split
  by article); python experiments/data/download.py DATA adds wikipedia/, books/ and
  blimp/data.
Run:
  bert_jax study table5:DATA --workdir runs/table5
"""

SMALL = dict(
    model=dict(
        vocab_size=4096,
        hidden_size=128,
        num_layers=2,
        num_heads=4,
        intermediate_size=512,
        max_positions=128,
        pre_norm=True,
        hidden_dropout=0.0,  # a run this short underfits
        attention_dropout=0.0,
        initializer_range=0.05,  # 0.02 suits a width of 768
    ),
    compute=dict(dtype="auto"),
    optimizer=dict(learning_rate=2e-3, warmup=0.1, beta2=0.98),
    log_every=50,
    eval_every=2500,
    eval_batches=100,
    checkpoint_every=500,
    keep_checkpoints=1,
)
ALONE = dict(next_sentence=False)
REPLACED = ALONE | dict(mask_rate=0.25, mask_share=1.0, random_share=0.0)
LSTMS = dict(encoder="lstm", positions="none", pre_norm=False)
# For each objective its module, and its settings of the model and of the examples.
OBJECTIVES = dict(
    mlm_nsp=("mlm_nsp", {}, {}),
    mlm=("mlm_nsp", {}, ALONE),
    left_to_right=("causal", dict(causal=True), ALONE),
    two_way=("two_way", LSTMS, ALONE),
    electra=("electra", {}, REPLACED),
)


def phase(steps: int, batch_size: int, length: int, mask_rate: float) -> dict:
    """Steps at one length, with room for all masks."""
    most = round(mask_rate * length) + 1
    return dict(
        steps=steps,
        batch_size=batch_size,
        sequence_length=length,
        max_predictions=most,
    )


def pretraining(
    data: str,
    objective: str = "mlm_nsp",
    packing: bool = False,
    steps: int = 5000,
    **examples: object,
) -> dict:
    """The settings of a small pretraining on DATA's Wikipedia and books."""
    module, model, own = OBJECTIVES[objective]
    examples = dict(mask_rate=0.4) | own | examples
    rate = examples["mask_rate"]
    return SMALL | dict(
        model=SMALL["model"] | model,
        objective=f"bert_jax.objectives.{module}",
        phases=(
            phase(steps // 2, 64, 32, rate),
            phase(steps // 2, 16, 128, rate),
        ),
        data=dict(
            corpus=(f"{data}/wikipedia", f"{data}/books"),
            vocabulary_size=SMALL["model"]["vocab_size"],
            holdout=0.02,
            threads=1,
            packing=packing,
            examples=examples,
        ),
    )


def tasks(data: str) -> dict:
    """The settings of the fine-tunings on DATA's tasks."""
    shared = dict(
        model=dict(hidden_dropout=0.0, attention_dropout=0.0),
        optimizer=dict(learning_rate=5e-4, bias_correction=True),
        batch_size=32,
        compute=dict(dtype="auto"),
        checkpoint_every=100,
    )
    squad = dict(
        dir=f"{data}/squad",
        train="dev-v1.1.json",
        dev="dev-v1.1.json",
        train_articles="0:36",
        dev_articles="36:48",
        max_length=128,
        stride=64,
    )
    return dict(
        sst2=shared
        | dict(
            family="classification",
            data=dict(task="sst2", dir=f"{data}/glue/SST-2", max_length=64),
            train_rows=8000,
            epochs=2,
        ),
        wnut17=shared
        | dict(
            family="tagging",
            data=dict(task="wnut17", dir=f"{data}/ner/wnut17", max_length=128),
            epochs=8,
        ),
        squad=shared
        | dict(family="question_answering", data=squad, train_rows=2000, epochs=3),
    )


def get_study(data: str = "data") -> dict:
    """All objectives, with as much computation each. ``data``: the folder of all files."""
    variants = {name: dict(pretrain=pretraining(data, name)) for name in OBJECTIVES}
    on_top = dict(features=dict(bilstm=True, width=128, dropout=0.0))
    variants["left_to_right_bilstm"] = variants["left_to_right"] | dict(finetune=on_top)
    return dict(
        variants=variants,
        tasks=tasks(data),
        pairs=(f"{data}/blimp/data",),
        pairs_per_set=40,
        equal_compute=True,
    )
