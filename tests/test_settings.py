"""Settings are fields with a default, a unit and a meaning, checked when they are read."""

import dataclasses

import pytest

from bert_jax.errors import UserError
from bert_jax.settings import from_settings, setting, setting_doc


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = setting(0.1, "probability of dropping a value")


@dataclasses.dataclass(frozen=True)
class Outer:
    steps: int = setting(doc="optimizer steps")
    inner: Inner = setting(factory=Inner, doc="dropout")


def test_a_setting_has_its_default_and_its_meaning():
    config = from_settings(Outer, {"steps": 3}, "")
    assert config == Outer(3, Inner(0.1))
    assert setting_doc(Outer, "steps") == "optimizer steps"
    assert setting_doc(config.inner, "rate") == "probability of dropping a value"


def test_a_setting_without_default_must_be_given():
    with pytest.raises(UserError, match=r"config\.steps is missing"):
        from_settings(Outer, {}, "")
    with pytest.raises(TypeError, match="steps"):
        Outer()


def test_nested_settings_are_checked_by_their_full_name():
    with pytest.raises(UserError, match=r"inner\.rat.*inner\.rate"):
        from_settings(Outer, {"steps": 3, "inner": {"rat": 0.1}}, "")
    with pytest.raises(UserError, match=r"config\.inner\.rate='x'"):
        from_settings(Outer, {"steps": 3, "inner": {"rate": "x"}}, "")
