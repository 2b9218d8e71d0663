"""SICK, Sentences Involving Compositional Knowledge (SemEval 2014, task 1).

Two tasks on the same pairs of sentences: entailment in three classes, and relatedness
from 1 to 5. SemEval's own metrics: accuracy, and Pearson's correlation.
"""

from bert_jax.tasks.labelled_texts import Layout, Split


def _splits(label: str) -> dict[str, Split]:
    names = dict(text_a="sentence_A", text_b="sentence_B", label=label, index="pair_ID")
    return {
        # Copies are about whose line 29 has spaces for tabs.
        "train": Split(("SICK_train.txt",), tfds="train", skip_short=True, **names),
        "dev": Split(("SICK_trial.txt",), tfds="validation", **names),
        "test": Split(("SICK_test_annotated.txt",), tfds="test", **names),
    }


TASKS: dict[str, Layout] = {
    "sick_entailment": Layout(
        _splits("entailment_judgment"),
        metrics=("accuracy",),
        labels=("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
        eval_splits=("dev", "test"),
        tfds=("sentence_A", "sentence_B", "entailment_label"),
    ),
    "sick_relatedness": Layout(
        _splits("relatedness_score"),
        metrics=("pearson", "spearman", "pearson_spearman"),
        regression=True,
        eval_splits=("dev", "test"),
        tfds=("sentence_A", "sentence_B", "relatedness_score"),
    ),
}
