"""Settings are fields with default, unit and meaning. Values are checked on reading."""

import ast
import contextlib
import dataclasses
import inspect
import math
import re
import typing
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.model.config import FeatureConfig
from bert_jax.settings import (
    FilePath,
    Label,
    check_ranges,
    describe,
    differences,
    from_settings,
    merged,
    setting,
    setting_like,
)
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.config import (
    FineTuneConfig,
    FineTuneOptimizer,
    SweepConfig,
    TrainConfig,
)


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = setting(0.1, "probability of dropping a value", least=0, below=1)


@dataclasses.dataclass(frozen=True)
class Outer:
    steps: int = setting(doc="optimizer steps", least=1)
    inner: Inner = setting(factory=Inner)
    more: tuple[Inner, ...] = setting((), "further groups")
    kind: str = setting("big", "size of the model", one_of=("big", "small"))


def test_a_setting_has_its_default_and_its_meaning():
    config = from_settings(Outer, {"steps": 3}, "")
    assert config == Outer(3, Inner(0.1))
    assert dataclasses.fields(config)[0].metadata["doc"] == "optimizer steps"


def test_a_setting_may_copy_another_with_its_own_default():
    @dataclasses.dataclass(frozen=True)
    class Other:
        rate: float = setting_like(Inner, "rate", 0.5)

    assert describe(Other()) == ["rate = 0.5  # probability of dropping a value"]
    with pytest.raises(UserError, match=r"rate=1\.0, expected at least 0 and below 1"):
        check_ranges(Other(1.0))


def test_a_setting_without_default_must_be_given():
    with pytest.raises(UserError, match=r"^steps is missing"):
        from_settings(Outer, {}, "")
    with pytest.raises(TypeError, match="steps"):
        Outer()


def test_nested_settings_are_checked_by_their_full_name():
    with pytest.raises(UserError, match=r"inner\.rat.*inner\.rate"):
        from_settings(Outer, {"steps": 3, "inner": {"rat": 0.1}}, "")
    with pytest.raises(UserError, match=r"^inner\.rate='x'"):
        from_settings(Outer, {"steps": 3, "inner": {"rate": "x"}}, "")


@dataclasses.dataclass(frozen=True)
class Forms:
    rate: float = setting(0.5, "rate")
    steps: int = setting(3, "steps")
    fast: bool = setting(False, "whether it is fast")
    name: str = setting("", "name")
    sizes: tuple[int, ...] = setting((), "sizes")
    labels: tuple[Label, ...] = setting((), "labels")
    weights: dict[str, float] = setting(factory=dict, doc="weight of each label")
    folder: FilePath = setting("", "folder")
    files: tuple[FilePath, ...] = setting((), "files")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rate", np.float32(1e-4), float(np.float32(1e-4))),
        ("rate", np.int64(2), 2.0),
        ("rate", pd.Series([0.25])[0], 0.25),
        ("steps", np.int64(8), 8),
        ("steps", np.array(8), 8),
        ("fast", np.bool_(True), True),
        ("name", np.str_("a"), "a"),
        ("sizes", np.array([4, 5], np.int32), (4, 5)),
        ("sizes", pd.Series([4, 5]), (4, 5)),
        ("sizes", range(4, 6), (4, 5)),
        ("sizes", (np.int8(4), 5), (4, 5)),
        ("labels", [0, 1], ("0", "1")),
        ("labels", np.unique([3, 10, 3]), ("3", "10")),
        ("labels", np.array(["b", "a"]), ("b", "a")),
        ("labels", pd.Index(["b", "a"]), ("b", "a")),
        ("labels", pl.Series(["b", "a"]), ("b", "a")),
        ("labels", pa.array(["b", "a"]), ("b", "a")),
        ("labels", (1.0, 2.0), ("1", "2")),
        ("labels", (False, np.bool_(True)), ("False", "True")),
        ("weights", {np.int64(1): np.float32(0.5), 2.0: 3}, {"1": 0.5, "2": 3.0}),
        ("folder", "~/runs/a", "HOME/runs/a"),
        ("folder", "~", "HOME"),
        ("folder", Path("~/runs"), "HOME/runs"),
        ("folder", "a/~/b", "a/~/b"),
        ("folder", "~no_such_user_here/b", "~no_such_user_here/b"),
        ("files", ["~/a.txt", "b~.txt"], ("HOME/a.txt", "b~.txt")),
        ("name", "~/runs", "~/runs"),
    ],
)
def test_a_setting_may_be_a_value_of_numpy_or_pandas(
    name, value, expected, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    found = getattr(from_settings(Forms, {name: value}, ""), name)
    expected = ast.literal_eval(repr(expected).replace("HOME", str(tmp_path)))
    assert found == expected and type(found) is type(expected)
    items = found if isinstance(found, tuple) else ()
    assert {type(item) for item in items} <= {int, str}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rate", "2e-5", "rate='2e-5', expected a value of type float"),
        ("steps", np.float64(8), r"steps=8\.0, expected a value of type int"),
        ("steps", np.array([8]), r"steps=\[8\], expected a value of type int"),
        ("labels", "ab", "labels='ab', expected a tuple"),
        ("labels", {"a", "b"}, "expected a tuple"),
        ("labels", [0.5], r"labels\[0\]=0\.5, expected a value of type str"),
        ("labels", [None], r"labels\[0\]=None, expected a value of type str"),
        ("folder", 3, "folder=3, expected a value of type str"),
    ],
)
def test_values_of_other_types_are_refused(name, value, message):
    with pytest.raises(UserError, match=message):
        from_settings(Forms, {name: value}, "")


def test_none_has_no_limits_and_an_empty_text_is_shown():
    @dataclasses.dataclass(frozen=True)
    class Limits:
        top: int | None = setting(None, "number", least=2)
        kind: str = setting("", "kind", one_of=("big", ""))

    check_ranges(Limits())
    with pytest.raises(UserError, match="top=1, expected at least 2"):
        check_ranges(Limits(top=1))
    with pytest.raises(UserError, match="kind='tall', expected one of big, ''"):
        check_ranges(Limits(kind="tall"))


def test_a_setting_may_be_of_two_types():
    @dataclasses.dataclass(frozen=True)
    class Either:
        weights: dict[str, float] | str = setting(factory=dict, doc="weights by name")

    def read(value):
        return from_settings(Either, {"weights": value}, "").weights

    assert read("balanced") == "balanced"
    assert read({0: 1, "b": np.float64(0.5)}) == {"0": 1.0, "b": 0.5}
    for value, message in [
        (5, r"expected a value of type dict\[str, float\] \| str"),
        ({"a": "x"}, "weights.a='x', expected a value of type float"),
        ({"a": True}, "weights.a=True, expected a value of type float"),
    ]:
        with pytest.raises(UserError, match=message):
            read(value)


def leaves(kind):
    """All settings of a config class, each with its class."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        inner = (*typing.get_args(hint), hint)[0]
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner)
        elif hint is not typing.Any:
            yield kind, field


@pytest.mark.parametrize(
    "kind", [TrainConfig, FineTuneConfig, *(f.config_class for f in FAMILIES.values())]
)
def test_every_setting_has_a_meaning(kind):
    without = [
        f"{owner.__name__}.{field.name}"
        for owner, field in leaves(kind)
        if not field.metadata.get("doc")
    ]
    assert without == []


def test_a_config_is_described_by_name_value_and_meaning():
    assert describe(Outer(3, more=(Inner(0.2),))) == [
        "steps = 3  # optimizer steps",
        "inner.rate = 0.1  # probability of dropping a value",
        "more[0].rate = 0.2  # probability of dropping a value",
        "kind = 'big'  # size of the model",
    ]


def test_differences_are_listed_for_settings_of_either_side():
    one, two = {"a": [{"x": 1}], "b": {}}, {"a": [{"x": 1}, {"x": 2}], "b": {"c": [3]}}
    assert differences(one, two) == [("a[1].x", None, 2), ("b.c", None, [3])]
    assert differences(two, one) == [("a[1].x", 2, None), ("b.c", [3], None)]
    assert differences(two, two) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Outer(0), r"^steps=0, expected at least 1$"),
        (
            Outer(1, Inner(1.0)),
            r"^inner\.rate=1.0, expected at least 0 and below 1$",
        ),
        (Outer(1, Inner(math.nan)), r"^inner\.rate=nan, expected"),
        (Outer(1, more=(Inner(), Inner(-1.0))), r"^more\[1\]\.rate=-1.0, expected"),
        (
            Outer(1, kind="tiny"),
            r"^kind='tiny', expected one of big, small$",
        ),
    ],
)
def test_a_setting_outside_its_limits_is_refused(config, message):
    check_ranges(Outer(1, Inner(0.0)))
    with pytest.raises(UserError, match=message):
        check_ranges(config)


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        ({"least": 1.0}, [0.5]),
        ({"above": 1.0}, [0.5, 1.0]),
        ({"most": 1.0}, [1.5]),
        ({"below": 1.0}, [1.0, 1.5]),
    ],
)
def test_least_and_most_include_their_value_but_above_and_below_do_not(limits, refused):
    field = setting(doc="a number", **limits)
    kind = dataclasses.make_dataclass("Limited", [("x", float, field)])
    for value in (0.5, 1.0, 1.5):
        expected = pytest.raises(UserError, match=f"x={value}, expected")
        with expected if value in refused else contextlib.nullcontext():
            check_ranges(kind(value))


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": (1e-5, math.nan)},
        {"learning_rate": (-1.0,)},
        {"batch_size": (8, 0)},
        {"epochs": (0,)},
        {"seeds": (0, -1)},
    ],
)
def test_each_item_of_a_tuple_has_the_limits(changes):
    ((name, value),) = changes.items()
    shown = re.escape(f"sweep.{name}={value!r}, expected ")
    with pytest.raises(UserError, match=f"^{shown}"):
        check_ranges(SweepConfig(**changes), "sweep.")
    with pytest.raises(UserError, match=r"^features.layers=\(4294967296,\), expec"):
        check_ranges(FeatureConfig(layers=(1 << 32,)))
    check_ranges(SweepConfig())


def test_functions_show_their_settings_with_types_defaults_and_meanings():
    shown = inspect.signature(bert_jax.finetune).parameters
    assert (shown["epochs"].annotation, shown["epochs"].default) == (int, 3)
    assert (shown["warmup"].annotation, shown["warmup"].default) == (float, 0.1)
    assert (shown["compute"].annotation, shown["compute"].default) == (dict, {})
    field_names = {field.name for field in dataclasses.fields(FineTuneConfig)}
    field_names |= {field.name for field in dataclasses.fields(FineTuneOptimizer)}
    assert field_names - {"family", "data", "optimizer", "sweep"} <= shown.keys()
    assert all(x.kind != x.VAR_KEYWORD for x in shown.values())
    page = inspect.getdoc(bert_jax.finetune)
    meaning = FineTuneConfig.__dataclass_fields__["epochs"].metadata["doc"]
    assert f"\nepochs: {meaning}.\n" in page
    # A class's own settings are before its parents', and groups with keys are last.
    names = [*shown]
    order = [
        "epochs",
        "learning_rate",
        "warmup_steps",
        "evaluations",
        "tracker",
        "mesh",
    ]
    assert sorted(order, key=names.index) == order
    assert [*names[-5:]] == ["optimizer", "model", "features", "compute", "mesh"]
    head = "mesh: a MeshConfig, or a dictionary with some of its settings:"
    first = (
        "replica = 1  # groups of devices, such as TPU slices, which split the batch"
    )
    assert f"\n{head}\n  {first}\n" in page
    assert max(map(len, page.partition("Settings:")[2].splitlines())) <= 80
    pretrain = inspect.signature(bert_jax.pretrain).parameters
    assert (pretrain["beta2"].default, pretrain["log_every"].default) == (0.999, 100)
    assert {"phases", "optimizer", "compute", "mesh", "model", "data"} <= {*pretrain}
    # Without an argument load keeps the value of the files.
    dtype = inspect.signature(bert_jax.load).parameters["dtype"]
    assert (dtype.annotation, dtype.default) == (str | None, None)


def test_groups_of_settings_are_merged():
    settings = {"seed": 1, "data": {"path": "a", "examples": {"mask_rate": 0.2}}}
    changes = {"data": {"examples": {"mask_share": 1}}, "phases": [{"steps": 3}]}
    expected = {"path": "a", "examples": {"mask_rate": 0.2, "mask_share": 1}}
    result = merged(settings, changes)
    assert result == {"seed": 1, "data": expected, "phases": [{"steps": 3}]}
    assert settings["data"]["examples"] == {"mask_rate": 0.2}
    assert merged({"weights": {"a.b": 1}}, {"weights": 2}) == {"weights": 2}
