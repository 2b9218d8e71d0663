import json
import shutil

import pytest

from bert_jax.data.tokenizer import load_tokenizer
from bert_jax.errors import UserError

# What transformers makes of them; tests/golden/huggingface/make.py prints it.
IDS = {
    "The cat's caf\u00e9, na\u00efve \u4e2d\u6587 CATs?": (
        "37 38 5 16 11 23 40 6 15 23 31 35 27 21 22 38 33 8"
    ),
    "a bee see": "9 39 16 27 27",
}


@pytest.fixture
def folder(golden, tmp_path):
    return shutil.copytree(golden / "huggingface/tokenizer", tmp_path / "folder")


def change(folder, *path, value):
    """Sets one field of tokenizer.json."""
    settings = json.loads((folder / "tokenizer.json").read_text())
    group = settings
    for key in path[:-1]:
        group = group[key]
    group[path[-1]] = value
    (folder / "tokenizer.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_ids_are_those_of_transformers(folder, name):
    tokenizer = load_tokenizer(folder / name)
    for text, ids in IDS.items():
        assert tokenizer.encode(text).tolist() == [int(i) for i in ids.split()]
    assert tokenizer.vocab_size == 61
    assert tokenizer.lower_case


def test_it_comes_to_the_same_as_its_vocab_txt(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.save(folder)
    (folder / "tokenizer.json").unlink()
    assert load_tokenizer(folder).fingerprint() == tokenizer.fingerprint()


def test_lower_casing_is_read_from_the_settings_first(folder):
    change(folder, "normalizer", "lowercase", value=False)
    assert load_tokenizer(folder).lower_case  # as tokenizer_config.json has it
    (folder / "tokenizer_config.json").unlink()
    assert not load_tokenizer(folder).lower_case
    assert load_tokenizer(folder, lower_case=True).lower_case


def test_added_tokens_have_the_ids_after_the_vocabulary(folder):
    settings = json.loads((folder / "tokenizer.json").read_text())
    added = [*settings["added_tokens"], {"id": 61, "content": "[E1]"}]
    change(folder, "added_tokens", value=added)
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.vocab_size, tokenizer.tokens[61]) == (62, "[E1]")
    added[-1]["id"] = 70
    change(folder, "added_tokens", value=added)
    with pytest.raises(UserError, match="ids of its 62 tokens are not 0 to 61"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("model", "type"), "BPE", "model.type='BPE'; expected 'WordPiece'"),
        (("model", "unk_token"), "<unk>", "model.unk_token='<unk>'"),
        (("model", "continuing_subword_prefix"), "@@", "prefix='@@'; expected '##'"),
        (("normalizer", "type"), "NFKC", "normalizer.type='NFKC'"),
        (("normalizer", "handle_chinese_chars"), False, "handle_chinese_chars=False"),
        (("normalizer", "strip_accents"), False, "strip_accents=False"),
        (("pre_tokenizer", "type"), "Whitespace", "expected 'BertPreTokenizer'"),
        (("normalizer",), None, "is not the tokenizer.json of a WordPiece tokenizer"),
        (("normalizer",), {"type": "Lowercase"}, "normalizer.type='Lowercase'"),
        (("model", "vocab"), [["a", 0.5]], "ids of its 6 tokens are not 0 to 5"),
    ],
)
def test_a_tokenizer_that_cuts_otherwise_is_refused(folder, path, value, said):
    change(folder, *path, value=value)
    with pytest.raises(UserError, match=said) as e:
        load_tokenizer(folder)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": 1}'])
def test_what_is_no_tokenizer_is_one_line(folder, text):
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"the tokenizer.json of a WordPiece"):
        load_tokenizer(folder)
