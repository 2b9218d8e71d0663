"""Values that were read, against the types that are expected."""

import dataclasses
from typing import Any, Literal, Required, TypedDict

import pytest

from bert_jax.errors import UserError
from bert_jax.files import parse_json
from bert_jax.schema import check


class Part(TypedDict, total=False):
    type: Required[str]
    width: int | None


@dataclasses.dataclass
class Store:
    tokens: int
    share: float = 0.5
    layers: tuple[int, ...] = ()
    shards: list[tuple[str, int]] = dataclasses.field(default_factory=list)


class Form(TypedDict, total=False):
    name: str
    share: float
    exact: bool
    modes: str | list[str] | None
    parts: list[Part]
    prompts: dict[str, str]
    kind: Literal["<u2", "<u4"]
    store: Store
    rest: Any


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"unknown": object()},
        {"name": "a", "share": 1, "exact": False, "modes": None, "rest": []},
        {"share": float("nan"), "modes": "mean"},
        {"modes": ["mean", "cls"], "kind": "<u4"},
        {"parts": [{"type": "x"}, {"type": "y", "width": None}], "prompts": {}},
        {
            "prompts": {"query": "q: "},
            "store": {"tokens": 3, "layers": [1], "shards": [["a", 3]]},
        },
    ],
)
def test_values_of_the_form_are_accepted(value):
    check(value, Form)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"name": None}, "name=None, expected a text"),
        ({"name": 3}, "name=3, expected a text"),
        ({"share": True}, "share=True, expected a number"),
        ({"share": "1"}, "share='1', expected a number"),
        ({"share": 10**400}, "share=1000000"),
        ({"store": {"tokens": 1 << 63}}, "store.tokens=9223372036854775808, expected"),
        ({"exact": 1}, "exact=1, expected true or false"),
        ({"modes": 1.5}, "modes=1.5, expected a text, a list or null"),
        ({"modes": ["a", []]}, r"modes[1]=[], expected a text"),
        ({"parts": {}}, "parts={}, expected a list"),
        ({"parts": [{"type": "x"}, None]}, "parts[1]=None, expected an object"),
        ({"parts": [{}]}, "parts[0].type is missing, expected a text"),
        (
            {"parts": [{"type": "x", "width": 2.0}]},
            "parts[0].width=2.0, expected a whole number or null",
        ),
        ({"prompts": ["a"]}, "prompts=['a'], expected an object"),
        ({"prompts": {"q": 1}}, "prompts.q=1, expected a text"),
        ({"kind": "x"}, "kind='x', expected one of '<u2', '<u4'"),
        ({"kind": ["x"]}, "kind=['x'], expected one of '<u2', '<u4'"),
        (
            {"store": {"tokens": 1, "layers": [2, None]}},
            "store.layers[1]=None, expected a whole number",
        ),
        (
            {"store": {"tokens": 1, "shards": [["a", "3"]]}},
            "store.shards[0][1]='3', expected a whole number",
        ),
        (
            {"store": {"tokens": 1, "shards": [["a", 3, 4]]}},
            "store.shards[0]=['a', 3, 4], expected a list of 2 items",
        ),
        ({"store": {}}, "store.tokens is missing, expected a whole number"),
        ({"store": {"tokens": 1, "share": []}}, "store.share=[], expected a number"),
    ],
)
def test_the_key_and_the_expected_type_are_named(value, message):
    with pytest.raises(UserError) as error:
        check(value, Form)
    assert str(error.value).startswith(message)


def test_a_file_may_contain_a_list():
    text = '[{"type": "x"}]'
    assert parse_json(text, "a.json", "parts", list[Part]) == [{"type": "x"}]
    with pytest.raises(UserError, match=r"^a\.json: \[0\]\.type=3, expected a text$"):
        parse_json('[{"type": 3}]', "a.json", "parts", list[Part])
    with pytest.raises(UserError, match=r"^a\.json contains a JSON dict; expected pa"):
        parse_json("{}", "a.json", "parts", list[Part])
    with pytest.raises(UserError, match=r"^a\.json: name=3, expected a text$"):
        parse_json('{"name": 3}', "a.json", "a form", Form)
