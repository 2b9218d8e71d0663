from bert_jax.errors import nearest_setting


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
