import pytest

from bert_jax.errors import UserError, naming_arguments, nearest_setting


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("--top=0, expected 1 to 9", "top=0, expected 1 to 9"),
        ("batch_size=0; set --config.batch_size", "batch_size=0; set batch_size"),
        ("config.data.lenght is not a setting", "lenght is not a setting"),
        ("set --config.optimizer.bias_correction=True", "set bias_correction=True"),
        ("give --data or --dir, or rows", "give data or dir, or rows"),
        ("a/config.json: config.model.x", "a/config.json: model.x"),
        ("make it with tfds build glue --file_format=array_record",) * 2,
        ("runs/my--run/config.json is empty",) * 2,
    ],
)
def test_settings_are_named_as_arguments(command, python):
    with pytest.raises(UserError) as caught, naming_arguments():
        raise UserError(command)
    assert str(caught.value) == python


def test_the_nearest_setting():
    known = ["epochs", "batch_size", "optimizer.learning_rate", "train_rows"]
    for name, expected in {
        "lr": "optimizer.learning_rate",
        "num_train_epochs": "epochs",
        "learning_rate": "optimizer.learning_rate",
        "optimiser.learning_rate": "optimizer.learning_rate",
        "batchsize": "batch_size",
        "xyzzy": "",
    }.items():
        assert nearest_setting(name, known) == expected
    known = ["sweep.epochs", "optimizer.beta1", "epochs"]
    assert nearest_setting("num_train_epochs", known) == "epochs"
    assert nearest_setting("sweep.num_train_epochs", known) == "sweep.epochs"
