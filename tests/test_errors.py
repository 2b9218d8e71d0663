import pytest

from bert_jax.errors import hint


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("learning_rate", "optimizer.learning_rate"),
        ("num_epochs", "epochs"),
        ("optimiser.learning_rate", "optimizer.learning_rate"),
        ("batchsize", "batch_size"),
        ("sweep.num_epochs", "sweep.epochs"),
        ("xyzzy", ""),
    ],
)
def test_the_nearest_setting_is_suggested(name, expected):
    known = ["sweep.epochs", "epochs", "batch_size", "optimizer.learning_rate"]
    assert hint(name, known) == (expected and f"did you mean {expected}?")
