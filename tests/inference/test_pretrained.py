import jax
import pytest

from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.predict import Predictor
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig
from bert_jax.objectives.mlm_nsp import MlmNsp

TEXTS = ["the [MASK] of the sea", "a [MASK] and [MASK] ship ."]


@pytest.fixture(scope="module")
def fill(small_store):
    directory, vocab_size = small_store
    tokenizer = load_tokenizer(directory)
    model = BertForPreTraining(
        BertConfig(
            vocab_size=vocab_size,
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            intermediate_size=32,
            max_positions=40,
            initializer_range=0.5,
        )
    )
    params = jax.jit(MlmNsp(model).init)(jax.random.key(0))
    checkpoint = Checkpoint(model.config, params, tokenizer, "pretraining")

    def fill(texts, length=32, top=3):
        answers = Predictor(checkpoint, max_length=length, top=top)(texts)
        assert [answer["text"] for answer in answers] == texts
        return [
            [[(g["token"], g["probability"]) for g in blank] for blank in a["blanks"]]
            for a in answers
        ]

    return fill


def test_each_blank_gets_its_likeliest_tokens(fill, small_store):
    answers = fill(TEXTS, top=5)
    assert [len(blanks) for blanks in answers] == [1, 2]
    tokens = set(load_tokenizer(small_store[0]).tokens)
    for blanks in answers:
        for blank in blanks:
            probabilities = [p for _, p in blank]
            assert probabilities == sorted(probabilities, reverse=True)
            assert 0 < sum(probabilities) <= 1
            assert {token for token, _ in blank} <= tokens


def test_neither_padding_nor_neighbours_change_an_answer(fill):
    together = fill(TEXTS)
    for i, text in enumerate(TEXTS):
        (alone,) = fill([text], length=40)
        for blank, other in zip(alone, together[i], strict=True):
            assert [token for token, _ in blank] == [token for token, _ in other]
            assert [p for _, p in blank] == pytest.approx(
                [p for _, p in other], abs=1e-5
            )


def test_a_text_without_a_blank_or_too_long_is_named(fill):
    with pytest.raises(UserError, match=r"row 0: no \[MASK\] in 'the sea'"):
        fill(["the sea"])
    with pytest.raises(UserError, match="at most 8 fit"):
        fill(["[MASK] " + "sea " * 30], length=8)
