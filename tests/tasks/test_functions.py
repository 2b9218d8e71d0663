"""The functions of bert_jax.tasks: arguments and help."""

import inspect

import pytest

import bert_jax
from bert_jax.errors import UserError

FUNCTIONS = [getattr(bert_jax.tasks, name) for name in bert_jax.tasks.__all__]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_arguments_are_the_settings_of_the_family(function):
    signature = inspect.signature(function)
    task = function(
        *{"glue": ["rte"], "sick": ["entailment"]}.get(function.__name__, [])
    )
    settings = {name: p for name, p in signature.parameters.items() if name != "name"}
    assert {"dir", "max_length"} <= {*settings} <= {*vars(task.config)}
    assert {"task"} >= {*vars(task.config)} - {*settings}
    assert signature.return_annotation is type(task)
    for name, parameter in settings.items():
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.default == getattr(task.config, name), name
        assert parameter.annotation is not parameter.empty
        assert f"{name}: " in function.__doc__


def test_names_and_settings_are_checked():
    assert dir(bert_jax.tasks) == sorted(bert_jax.tasks.__all__)
    pairs = bert_jax.tasks.pairs(text_b="reply", max_length=32, labels=["no", "yes"])
    assert (pairs.config.text_a, pairs.config.text_b) == ("", "reply")
    assert pairs.labels == ("no", "yes")
    assert bert_jax.tasks.sick("relatedness").config.task == "sick_relatedness"
    with pytest.raises(
        UserError, match=r"data.max_lenght .* did you mean data.max_length"
    ):
        bert_jax.tasks.classification(max_lenght=12)
    with pytest.raises(AttributeError, match="no attribute 'classify'"):
        bert_jax.tasks.classify()
