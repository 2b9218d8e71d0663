"""The gain from pretraining: six tasks with and without it.

What: SST-2, MRPC, CoLA, WNUT-17, SICK and SQuAD (3,000 questions of 36 articles for
  training, 12 articles for dev), from models/english and from random parameters. Both
  variants are "pretrained" for one step at a learning rate of 1e-12, which changes nothing.
On: two CPU cores, two seeds at a time.
Result: see docs/results.md.
Before: a folder DATA with glue/SST-2, glue/MRPC, glue/CoLA, ner/wnut17, sick and
  squad/dev-v1.1.json. The step needs a text:
  bert_jax prepare --input python-docs --vocabulary models/english --output DATA/text
Run:
  bert_jax study pretrained:DATA --workdir runs/pretrained
"""

from pathlib import Path

from table5 import tasks as table5_tasks

ENGLISH = str(Path(__file__).parents[2] / "models/english")
MODEL = dict(
    vocab_size=8192,
    hidden_size=256,
    num_layers=4,
    num_heads=4,
    intermediate_size=688,
    max_positions=128,
    type_vocab_size=0,
    positions="rotary",
    pre_norm=True,
    embedding_norm=True,
    norm_bias=False,
    attention_bias=False,
    gated=True,
    feed_forward_bias="none",
    pooler="transform",
    pooling="mean",
    head_bias=False,
    model_type="modernbert",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.035,
)


def no_steps(data: str, init_from: str = "") -> dict:
    """A pretraining that changes nothing, because each variant needs one."""
    return dict(
        model=MODEL,
        init_from=init_from,
        compute=dict(dtype="auto"),
        optimizer=dict(learning_rate=1e-12),
        phases=(dict(steps=1, batch_size=16, sequence_length=128, max_predictions=20),),
        data=dict(
            path=f"{data}/text",
            holdout=0.02,
            examples=dict(next_sentence=False),
            threads=1,
        ),
        eval_every=1,
        eval_batches=1,
    )


def tasks(data: str) -> dict:
    """Table 5's tasks and three more."""
    known = table5_tasks(data)
    shared = known["sst2"] | dict(train_rows=0)

    def glue(name: str, folder: str, length: int, **settings: int) -> dict:
        own = dict(task=name, dir=f"{data}/glue/{folder}", max_length=length)
        return shared | dict(data=own) | settings

    def other(name: str, **settings: int) -> dict:
        own = dict(family=known[name]["family"], data=known[name]["data"])
        return shared | own | settings

    return dict(
        sst2=glue("sst2", "SST-2", 64, epochs=1),
        mrpc=glue("mrpc", "MRPC", 128, epochs=3),
        cola=glue("cola", "CoLA", 64, epochs=4),
        wnut17=other("wnut17", epochs=6),
        sick=shared
        | dict(
            data=dict(task="sick_relatedness", dir=f"{data}/sick", max_length=64),
            epochs=5,
        ),
        squad=other("squad", train_rows=3000, epochs=2),
    )


def get_study(data: str = "data") -> dict:
    """Random parameters and models/english. ``data``: the folder of all files."""
    variants = dict(random=no_steps(data), english=no_steps(data, ENGLISH))
    return dict(
        variants={name: dict(pretrain=own) for name, own in variants.items()},
        tasks=tasks(data),
    )
