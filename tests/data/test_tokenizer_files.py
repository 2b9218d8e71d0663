"""Files of tokenizers; tests/golden/tokenizers has the ids of transformers."""

import json
import pickle
import re
import shutil

import pytest
import tokenizers

from bert_jax.data.tokenizer import BERT_TOKENS, save_vocabulary
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import write_tokenizer
from bert_jax.model.config import BertConfig

SPECIAL = list(BERT_TOKENS)
TOKENS = [*SPECIAL, "the", "a", "##b", "##ab", ".", "[", "]"]
# Texts and transformers' ids, printed by tests/golden/huggingface/make.py.
TRANSFORMERS_IDS = {
    "The cat's caf\u00e9, na\u00efve \u4e2d\u6587 CATs?": (
        "37 38 5 16 11 23 40 6 15 23 31 35 27 21 22 38 33 8"
    ),
    "a bee see": "9 39 16 27 27",
}


def write(path, tokens):
    path.write_text("\n".join([*tokens, ""]), encoding="utf-8")
    return path


def write_json(path, content):
    path.write_text(json.dumps(content))


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
    write_json(folder / "tokenizer.json", settings)


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_ids_equal_transformers(folder, name):
    tokenizer = load_tokenizer(folder / name)
    for text, ids in TRANSFORMERS_IDS.items():
        assert tokenizer.encode(text).tolist() == [int(i) for i in ids.split()]
    assert (tokenizer.vocab_size, tokenizer.lower_case) == (61, True)
    tokenizer.save(folder)
    (folder / "tokenizer.json").unlink()
    assert load_tokenizer(folder).fingerprint() == tokenizer.fingerprint()


def test_tokenizer_json_decides_the_case_and_the_accents(folder):
    """It takes precedence over a vocab.txt without capitals and over its own tokens."""
    tokenizer = load_tokenizer(folder)
    config = folder / "tokenizer_config.json"
    config.unlink()
    for name in ("lowercase", "strip_accents", "handle_chinese_chars"):
        change(folder, "normalizer", name, value=False)
    assert load_tokenizer(folder).kind == "tokenizers"
    change(folder, "normalizer", "handle_chinese_chars", value=True)
    write(folder / "vocab.txt", tokenizer.tokens)
    for name in ("", "vocab.txt", "tokenizer.json"):
        same = load_tokenizer(folder / name)
        assert (same.lower_case, same.strip_accents) == (False, False)
        assert same.kind == "wordpiece"


# Tokens of "A \u00e9 \u4e2d\u4e2d" in transformers 5.24 for rules of
# tokenizer_config.json, for any rules in the normalizer of tokenizer.json.
RULES = {
    (True, None, True): "a e \u4e2d \u4e2d",
    (False, None, True): "A \u00e9 \u4e2d \u4e2d",
    (False, True, True): "A e \u4e2d \u4e2d",
    (True, False, True): "a \u00e9 \u4e2d \u4e2d",
    (True, None, False): "a e \u4e2d\u4e2d",
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("other", RULES)
@pytest.mark.parametrize("kind", ["BertTokenizer", "BertTokenizerFast", None])
def test_tokenizer_config_json_decides_as_in_transformers(folder, rules, other, kind):
    change_rules(folder, other)
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    settings = dict(zip(names, rules, strict=True), tokenizer_class=kind)
    write_json(folder / "tokenizer_config.json", settings)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.tokenize("A \u00e9 \u4e2d\u4e2d") == RULES[rules].split()
    assert tokenizer.lower_case == rules[0]
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.fingerprint() == tokenizer.fingerprint()
    tokenizer.save(folder / "saved")
    assert load_tokenizer(folder / "saved").fingerprint() == tokenizer.fingerprint()


@pytest.mark.parametrize("rules", RULES)
def test_a_class_with_all_rules_in_tokenizer_json_ignores_settings(folder, rules):
    change_rules(folder, rules)
    settings = {"do_lower_case": not rules[0], "strip_accents": not rules[0]}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(folder / "tokenizer_config.json", settings)
    tokens = load_tokenizer(folder).tokenize("A \u00e9 \u4e2d\u4e2d")
    assert tokens == RULES[rules].split()


def change_rules(folder, rules):
    """Sets the normalizer's rules, and the tokens of RULES."""
    words = [*SPECIAL, "a", "A", "e", "\u00e9", "\u4e2d", "\u4e2d\u4e2d"]
    change(folder, "model", "vocab", value={word: i for i, word in enumerate(words)})
    names = ("lowercase", "strip_accents", "handle_chinese_chars")
    for name, value in zip(names, rules, strict=True):
        change(folder, "normalizer", name, value=value)
    cls_sep = {
        t: {"id": t, "ids": [words.index(t)], "tokens": [t]} for t in SPECIAL[2:4]
    }
    change(folder, "post_processor", "special_tokens", value=cls_sep)
    added = [{"id": i, "content": token} for i, token in enumerate(SPECIAL)]
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    change(
        folder, "added_tokens", value=[x | dict.fromkeys(flags, False) for x in added]
    )


def test_a_hole_in_the_ids_is_a_token_that_no_text_gets(folder):
    """As in transformers, which loads a tokenizer.json from which tokens were deleted."""
    tokenizer = load_tokenizer(folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    vocab = settings["model"]["vocab"]
    for token in ("the", "a"):
        del vocab[token]
    change(folder, "model", "vocab", value=vocab)
    holes = [tokenizer.ids[token] for token in ("the", "a")]
    for kind in ("wordpiece", "tokenizers"):
        other = load_tokenizer(folder)
        assert (other.kind, other.vocab_size) == (kind, tokenizer.vocab_size)
        assert [other.tokens[i] for i in holes] == ["", ""]
        assert not {*holes} & {*other.encode("the cat a bee").tolist()}
        kept = [i for i in range(len(other)) if i not in holes]
        assert [other.tokens[i] for i in kept] == [tokenizer.tokens[i] for i in kept]
        other.save(folder / kind)
        assert load_tokenizer(folder / kind).fingerprint() == other.fingerprint()
        change(folder, "normalizer", "clean_text", value=False)  # not Google's rule
    change(folder, "model", "vocab", value=vocab | {"far": 10**9})
    with pytest.raises(
        UserError, match=r"tokenizer\.json: its 60 tokens have ids up to"
    ):
        load_tokenizer(folder)


def test_a_panic_of_the_library_is_one_line(folder):
    """A BaseException of Rust, here for a template with an undefined token."""
    settings = json.loads((folder / "tokenizer.json").read_text())
    tokens = settings["post_processor"]["special_tokens"]
    del tokens["[CLS]"]
    change(folder, "post_processor", "special_tokens", value=tokens)
    with pytest.raises(
        UserError, match=r"tokenizer\.json: .* library failed \(no entry"
    ):
        load_tokenizer(folder)


def test_two_vocabularies_in_a_folder_keep_their_own_case(tmp_path):
    for name, lower_case in (("cased.txt", False), ("vocab.txt", True)):
        tokenizer = WordPieceTokenizer([*SPECIAL, "b"], lower_case)
        save_vocabulary(tokenizer, tmp_path / name)
    assert load_tokenizer(tmp_path / "cased.txt").lower_case is False
    assert load_tokenizer(tmp_path / "vocab.txt").lower_case is True


@pytest.mark.parametrize(("token", "lower_case"), [("the", True), ("##The", False)])
def test_without_settings_the_tokens_decide_the_case(tmp_path, token, lower_case):
    path = write(tmp_path / "vocab.txt", [*SPECIAL, "[unused1]", "[CLF]", token])
    assert load_tokenizer(path).lower_case is lower_case


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("\r\n".join([*TOKENS, ""]), TOKENS),
        ("\ufeff" + "\n".join(TOKENS), TOKENS),
        (
            "\n".join([*SPECIAL, "", "a ", "", "b", "", ""]),
            [*SPECIAL, "", "a", "", "b"],
        ),
        ("\n".join([*SPECIAL, "x\u2028y", "z"]), [*SPECIAL, "x\u2028y", "z"]),
    ],
    ids=["crlf", "byte order mark", "holes and an empty end", "other separators"],
)
def test_files_of_other_tools_are_read_unchanged(tmp_path, content, tokens):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content.encode())
    assert load_tokenizer(path).tokens == tokens


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", None, "no vocabulary at"),
        ("vocab.txt", b"\n\r\n\n", r"\[PAD\] .* is missing"),
        ("vocab.txt", "\n".join([*TOKENS, "é"]).encode("latin-1"), "not UTF-8"),
        ("vocab.txt", "\n".join(TOKENS[5:]).encode(), r"\[PAD\] .*\[MASK\] is missing"),
        (
            "vocab.txt",
            "\n".join([*TOKENS, "the"]).encode(),
            "'the' is on several lines",
        ),
        (
            "spiece.model",
            b"",
            "an empty file.*expected the .*spiece.model .* of a tokenizer",
        ),
        (
            "spiece.model",
            b"not a model",
            "expected the .*spiece.model .* of a tokenizer",
        ),
        ("tokenizer.json", b"{", "expected the tokenizer.json .* of a tokenizer"),
        (
            "tokenizer.json",
            b'{"model": 1}',
            "expected the tokenizer.json .* of a tokenizer",
        ),
    ],
)
def test_unusable_vocabularies_are_refused(tmp_path, name, content, message):
    with pytest.raises(UserError, match="no vocabulary"):
        load_tokenizer(tmp_path)
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(path)
    assert str(caught.value).count(str(path)) == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "contains a JSON list"),
        ('{"do_lower_case": "no"}', "do_lower_case='no'"),
        ('{"clean_text": false}', "clean_text=False"),
        ('{"never_split": ["b"]}', r"never_split=\['b'\]"),
        ('{"tokenize_chinese_chars": false}', "tokenize_chinese_chars=False"),
        ('{"mask_token": "<mask>"}', r"mask_token='<mask>' .*expected '\[MASK\]'"),
        ('{"tokenizer_class": "BertweetTokenizer"}', "='BertweetTokenizer' in"),
        ('{"tokenizer_class": "PreTrainedTokenizerFast"}', "expected 'BertTokenizer'"),
    ],
)
def test_settings_of_other_rules_are_refused(tmp_path, settings, message):
    write(tmp_path / "vocab.txt", TOKENS)
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_a_tokenizer_class_in_config_json_is_refused(tmp_path):
    write(tmp_path / "vocab.txt", TOKENS)
    write_json(tmp_path / "config.json", {"tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(UserError, match=r"vocab\.txt: .*'BertJapaneseTokenizer'"):
        load_tokenizer(tmp_path)
    # tokenizer_config.json takes precedence, as in transformers.
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    assert load_tokenizer(tmp_path).tokens == TOKENS


def test_the_longest_word_is_read_and_kept(folder, tmp_path):
    """The limit is 100 characters in Hugging Face's files and 200 in Google's."""
    tokenizer = load_tokenizer(folder)
    tokenizer.save(tmp_path / "saved")
    words = "a" + "b" * 99 + " a" + "b" * 100
    for other in (tokenizer, load_tokenizer(tmp_path / "saved")):
        assert other.tokenize(words)[-2:] == ["##b", "[UNK]"]
        assert len(other.encode(words)) == 101
        same = pickle.loads(pickle.dumps(other))
        assert same.fingerprint() == tokenizer.fingerprint()
    change(folder, "model", "max_input_chars_per_word", value=200)
    assert len(load_tokenizer(folder).encode(words)) == 201


@pytest.mark.parametrize("name", ["added", "bpe", "unigram", "modernbert", "gte"])
def test_ids_of_other_tokenizers_equal_transformers(golden, tmp_path, name):
    """Added tokens with all flags and other models, as loaded and as saved."""
    theirs = json.loads((golden / "tokenizers/golden.json").read_text())[name]
    tokenizer = load_tokenizer(golden / "tokenizers" / name)
    tokenizer.save(tmp_path)
    pickled = pickle.loads(pickle.dumps(tokenizer))
    for other in (tokenizer, load_tokenizer(tmp_path), pickled):
        assert other.fingerprint() == tokenizer.fingerprint()
        assert (other.kind, other.vocab_size) == ("tokenizers", theirs["size"])
        for text, ids in theirs["texts"].items():
            assert other.encode(text).tolist() == ids, text
        for text, ids in theirs["masked"].items():
            assert other.encode(text, allow_mask=True).tolist() == ids, text
        pair = other("the <e1> cat", "a bee")
        types = pair.pop("token_type_ids").tolist()
        assert types == theirs["pair"].get("token_type_ids", [0] * len(types))
        for key, row in pair.items():
            assert row.tolist() == theirs["pair"][key]
    special = tokenizer.special
    spelled = tokenizer.encode(f"a {special.cls} {special.sep} {special.mask}")
    assert not {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id} & {*spelled}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("modernbert", {"tokenizer_class": "RobertaTokenizer"}),
        ("modernbert", {"add_prefix_space": True}),
        ("bpe", {"tokenizer_class": "RobertaTokenizerFast"}),
        ("unigram", {"tokenizer_class": "XLMRobertaTokenizer"}),
        ("added", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    ],
)
def test_a_model_type_whose_class_is_ignored_has_all_rules_of_the_file(
    golden, tmp_path, caplog, name, settings
):
    """As when AutoTokenizer reads a ModernBERT whose files name another class."""
    theirs = json.loads((golden / "tokenizers/golden.json").read_text())[name]
    folder = tmp_path / "model"
    shutil.copytree(golden / "tokenizers" / name, folder)
    (folder / "config.json").write_text('{"model_type": "modernbert"}')
    path = folder / "tokenizer_config.json"
    old = json.loads(path.read_text())
    old.pop("tokenizer_class")
    path.write_text(json.dumps(old | settings))
    tokenizer = load_tokenizer(folder)
    assert not caplog.messages
    for text, ids in theirs["texts"].items():
        assert tokenizer.encode(text).tolist() == ids, text
    pair = tokenizer("the <e1> cat", "a bee")
    assert pair["input_ids"].tolist() == theirs["pair"]["input_ids"]
    # The folder has a config.json of another family.
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").fingerprint() == tokenizer.fingerprint()


@pytest.fixture
def opposite(golden, tmp_path):
    """The golden folder "added" with opposite flags in tokenizer.json.

    Returns a function that writes added_tokens_decoder, and the original flags in its form.
    """
    shutil.copytree(golden / "tokenizers/added", tmp_path, dirs_exist_ok=True)
    path, settings = tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"
    parts, decoder = json.loads(path.read_text()), {}
    for token in parts["added_tokens"]:
        decoder[str(token["id"])] = dict(token)
        for flag in ("lstrip", "rstrip", "single_word"):
            token[flag] = not token[flag]
    path.write_text(json.dumps(parts))
    values = json.loads(settings.read_text())

    def load(flags):
        settings.write_text(json.dumps(values | {"added_tokens_decoder": flags}))
        return load_tokenizer(tmp_path)

    return load, decoder


def test_flags_of_added_tokens_in_the_settings_take_precedence(golden, opposite):
    """As in transformers, so that the golden folder has the same ids."""
    load, decoder = opposite
    theirs = json.loads((golden / "tokenizers/golden.json").read_text())["added"]
    texts = theirs["texts"]
    tokenizer = load(decoder)
    exported = tokenizers.Tokenizer.from_str(tokenizer.to_json().decode())
    for text, ids in texts.items():
        assert tokenizer.encode(text).tolist() == ids, text
        assert exported.encode(text, add_special_tokens=False).ids == ids, text
    for text, ids in theirs["masked"].items():
        assert tokenizer.encode(text, allow_mask=True).tolist() == ids, text
    wrong = load({})
    assert [wrong.encode(text).tolist() for text in texts] != [*texts.values()]


def test_flags_of_another_token_with_the_same_id_are_not_read(opposite):
    load, decoder = opposite
    content = load({}).to_json()
    first, *others = [token["content"] for token in decoder.values()]
    for token, name in zip(decoder.values(), [*others, first], strict=True):
        token["content"] = name
    assert load(decoder).to_json() == content
    with pytest.raises(UserError, match="lstrip=1, expected true or false"):
        load({"9": {"content": "[CLS]", "lstrip": 1}})


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece", "tokenizers"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"<e1>": 24}),
        ("special_tokens_map.json", {"additional_special_tokens": ["<e1>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"x": "<e1>"}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<e1>"}}}),
    ],
)
def test_tokens_that_files_add_to_a_vocabulary_are_refused(
    golden, tmp_path, kind, name, content
):
    """Even if the vocabulary contains the token, because text would be split at it."""
    if kind == "tokenizers":
        folder = golden / "huggingface/tokenizer"
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        change(tmp_path, "model", "vocab", "<e1>", value=61)
    elif kind == "sentencepiece":
        train_vocabulary(["a cat sat"] * 20, 24, kind=kind).save(tmp_path)
    else:
        write(tmp_path / "vocab.txt", [*TOKENS, "<e1>"])
    path = tmp_path / name
    write_json(path, content | (json.loads(path.read_text()) if path.exists() else {}))
    with pytest.raises(UserError, match=r"add '<e1>'; expected a tokenizer.json with"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model", "type"), "BPE", "expected the tokenizer.json .* of a tokenizer"),
        (("model", "type"), None, 'its model has "type": null; expected "BPE"'),
        (
            ("post_processor", "pair", 3, "Sequence", "type_id"),
            0,
            "post_processor makes",
        ),
        (
            ("post_processor", "pair", 1, "Sequence", "type_id"),
            1,
            "post_processor makes",
        ),
        (
            ("post_processor", "pair", 0, "Sequence"),
            None,
            "expected the tokenizer.json",
        ),
        (("model", "vocab", "new"), 7, "its 62 tokens have ids up to 60; expected"),
        (("model", "vocab", "new"), 124, "its 62 tokens have ids up to 124; expected"),
        (
            ("model", "vocab", "new"),
            "7",
            "expected the tokenizer.json .* of a tokenizer",
        ),
    ],
)
def test_a_tokenizer_that_bert_cannot_use_is_refused(folder, path, value, message):
    change(folder, *path, value=value)
    # The class BertTokenizer has its own template.
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=message) as e:
        load_tokenizer(folder)
    assert "\n" not in str(e.value)


def test_two_forms_of_a_vocabulary_must_have_the_same_tokens(tmp_path, folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.save(tmp_path)
    shutil.copy(folder / "tokenizer.json", tmp_path)
    assert load_tokenizer(tmp_path).tokens == tokenizer.tokens
    tokens = list(tokenizer.tokens)
    tokens[9], tokens[10] = tokens[10], tokens[9]
    write(tmp_path / "vocab.txt", tokens)
    message = (
        f"tokenizer.json: token 9 is {tokens[10]!r}, but {tokens[9]!r} in vocab.txt"
    )
    with pytest.raises(UserError, match=re.escape(message)):
        load_tokenizer(tmp_path)
    write(tmp_path / "vocab.txt", [*tokenizer.tokens, "more"])
    with pytest.raises(UserError, match="token 61 is None, but 'more' in"):
        load_tokenizer(tmp_path)


def test_a_token_with_a_line_feed_is_kept(folder, tmp_path):
    """A vocab.txt cannot contain this token."""
    settings = json.loads((folder / "tokenizer.json").read_text())
    change(folder, "model", "vocab", value=settings["model"]["vocab"] | {"a\nb": 61})
    load_tokenizer(folder).save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").tokens[61] == "a\nb"


def test_length_types_and_side_of_the_settings_are_read_as_in_transformers(
    folder, tmp_path
):
    path = folder / "tokenizer_config.json"
    settings = {}
    if path.is_file():
        settings = json.loads(path.read_text())
    names = ["input_ids", "attention_mask"]
    changes = {"model_max_length": 6, "model_input_names": names}
    write_json(path, settings | changes | {"truncation_side": "left"})
    tokenizer = load_tokenizer(folder)
    for read in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        arrays = read("the sea", "the sea the sea the sea")
        assert not arrays["token_type_ids"].any()
        ids = arrays["input_ids"]
        assert len(ids) == 6
        end = tokenizer.encode("the sea")[-1]
        assert (ids[-2], ids[-1]) == (end, tokenizer.sep_id)
        one = read("the sea the sea the sea")["input_ids"]
        expected = tokenizer.encode("sea the sea the sea")[-4:]
        assert one.tolist() == [tokenizer.cls_id, *expected, tokenizer.sep_id]
    config = BertConfig(64, 8, 1, 2, 8, max_positions=16)
    (tmp_path / "saved").mkdir()
    write_tokenizer(tmp_path / "saved", tokenizer, config)
    saved = json.loads((tmp_path / "saved/tokenizer_config.json").read_text())
    for name, value in (changes | {"truncation_side": "left"}).items():
        assert saved[name] == value
    # A vocabulary that a run or a prepared text saves has the same rules.
    (tmp_path / "own").mkdir()
    tokenizer.save(tmp_path / "own")
    own = load_tokenizer(tmp_path / "own")
    assert own.truncation == "tail" and own.template.second_type == 0
    write_json(path, settings | {"model_max_length": 1e30})
    usual = load_tokenizer(folder)
    assert usual.model_max_length is None and usual.template.second_type == 1
