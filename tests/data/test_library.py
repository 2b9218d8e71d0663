"""Special tokens and templates that are not BERT's; tests/golden/templates has the ids of
transformers."""

import ast
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import bert_jax
from bert_jax.data import library
from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.library import LibraryTokenizer
from bert_jax.data.tokenizer import BERT_TOKENS, FAIRSEQ_TOKENS, SpecialTokens, Template
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError

PACKAGE = Path(bert_jax.__file__).parent
SPACED = Template(before=(0,), between=(2, 2), after=(2,), second_type=0)


@pytest.fixture
def folder(golden, tmp_path):
    """Copies the vocabulary of one of the golden names, with its settings."""

    def copy(name):
        files = (
            golden / "templates" / {"add_prefix_space": "byte_level"}.get(name, name)
        )
        if name == "notused":
            files = golden / "templates" / "fairseq"
        if name in ("fairseq", "notused"):
            size = json.loads((golden / "templates/golden.json").read_text())[name]
            (tmp_path / "config.json").write_text(f'{{"vocab_size": {size["size"]}}}')
        if name == "add_prefix_space":
            settings = tmp_path / "tokenizer_config.json"
            settings.write_text('{"add_prefix_space": true}')
        return shutil.copytree(files, tmp_path, dirs_exist_ok=True)

    return copy


@pytest.fixture
def byte_level(folder):
    return load_tokenizer(folder("byte_level"))


@pytest.fixture
def changed(byte_level, tmp_path):
    """Writes the byte-level BPE with changed parts of its tokenizer.json, and reads it."""

    def change(settings=None, **parts):
        content = json.loads(byte_level.to_json()) | parts
        path = tmp_path / "changed"
        path.mkdir()
        (path / "tokenizer.json").write_text(json.dumps(content))
        (path / "tokenizer_config.json").write_text(json.dumps(settings or {}))
        return load_tokenizer(path)

    return change


def template(single, pair):
    """A post_processor from tokens, and A, B or TOKEN:TYPE."""

    def items(text):
        for item in text.split():
            name, _, kind = item.partition(":")
            part = "Sequence" if name in "AB" else "SpecialToken"
            yield {part: {"id": name, "type_id": int(kind or 0)}}

    names = {**dict.fromkeys(f"{single} {pair}".split())}
    names = {n.partition(":")[0] for n in names} - {"A", "B"}
    tokens = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    special = {n: {"id": n, "ids": [tokens[n]], "tokens": [n]} for n in names}
    return {
        "type": "TemplateProcessing",
        "single": [*items(single)],
        "pair": [*items(pair)],
        "special_tokens": special,
    }


@pytest.mark.parametrize(
    "name", ["byte_level", "add_prefix_space", "fairseq", "notused"]
)
def test_ids_of_texts_pairs_and_words_equal_transformers(golden, folder, name):
    theirs = json.loads((golden / "templates/golden.json").read_text())[name]
    tokenizer = load_tokenizer(folder(name))
    assert tokenizer.special == FAIRSEQ_TOKENS
    tokenizer.save(folder(name) / "saved")
    saved = load_tokenizer(folder(name) / "saved")
    pickled = pickle.loads(pickle.dumps(tokenizer))
    for other in (tokenizer, saved, pickled):
        assert other.fingerprint() == tokenizer.fingerprint()
        assert (other.kind, len(other)) == ("tokenizers", theirs["size"])
        for text, ids in theirs["texts"].items():
            assert other(text)["input_ids"].tolist() == ids, text
        for second, ids, types in theirs["pairs"]:
            pair = other("a cat's", second)
            assert pair["input_ids"].tolist() == ids, second
            assert pair["token_type_ids"].tolist() == types
    words = list(theirs["texts"])[4].split()
    ids, _ = tokenizer.build(
        np.concatenate(tokenizer.encode_batch(tokenizer.spaced(words)))
    )
    if name == "byte_level":  # transformers needs add_prefix_space for words
        assert ids.tolist() == theirs["texts"][" ".join(words)]
    else:
        assert ids.tolist() == theirs["words"]


def test_the_template_is_measured(byte_level, changed):
    assert byte_level.template == SPACED
    assert (byte_level.overhead(1), byte_level.overhead(2)) == (2, 4)
    assert byte_level.starts(3, 5) == [1, 6]
    pair = template("<s> <unk> A </s> <pad>", "<s> <unk> A <s> </s> B:1 </s>:1 <pad>:1")
    other = changed(post_processor=pair)
    assert other.template == Template((0, 3), (0, 2), (2, 1), second_type=1)
    assert (other.overhead(1), other.overhead(2)) == (4, 6)
    assert other.starts(3, 5) == [2, 7]
    a, b = other.encode("cat"), other.encode("bees")
    ids, types = other.build(a, b)
    assert ids.tolist() == [0, 3, *a, 0, 2, *b, 2, 1]
    assert types.tolist() == [0] * (4 + len(a)) + [1] * (2 + len(b))
    assert other.template_ids.tolist() == [0, 1, 2, 3]
    assert other.fingerprint() != byte_level.fingerprint()


@pytest.mark.parametrize(
    ("single", "pair"),
    [
        ("<s> A </s>", "<s> B </s> A </s>"),
        ("<s> A </s>", "<s> A </s> B </s> </s>"),
        ("A </s>", "<s> A </s> B </s>"),
        ("A </s>", "A </s> B </s>"),
        ("<s> A", "<s> A </s> B"),
        ("<s>:1 A </s>", "<s>:1 A </s> B </s>"),
        ("<s> A </s>", "<s> A </s>:1 B:1 </s>:1"),
    ],
)
def test_another_template_is_refused(changed, single, pair):
    with pytest.raises(
        UserError, match=r"its post_processor makes '.* of a( and a)?; "
    ) as e:
        changed(post_processor=template(single, pair))
    assert "expected special tokens before, between and after" in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, {}),
        ({"bos_token": "<unk>"}, {"cls": "<unk>"}),
        ({"bos_token": "<unk>", "cls_token": "<s>"}, {}),
        ({"eos_token": {"content": "<pad>"}}, {"sep": "<pad>"}),
        ({"mask_token": "a", "pad_token": "</s>"}, {"mask": "a", "pad": "</s>"}),
        ({"unk_token": None}, {}),
    ],
)
def test_settings_name_the_special_tokens(changed, byte_level, settings, tokens):
    tokenizer = changed(settings)
    assert tokenizer.special == FAIRSEQ_TOKENS._replace(**tokens)
    for name in SpecialTokens._fields:
        token_id = getattr(tokenizer, f"{name}_id")
        assert tokenizer.tokens[token_id] == getattr(tokenizer.special, name)
    content = json.dumps(json.loads(byte_level.to_json())).encode()
    plain = LibraryTokenizer(content, FAIRSEQ_TOKENS)
    assert (tokenizer.fingerprint() == plain.fingerprint()) is (not tokens)
    # The saved settings contain the names, too.
    assert SpecialTokens(
        *(tokenizer.config()[f"{name}_token"] for name in SpecialTokens._fields)
    ) == (tokenizer.special)


def test_a_special_token_must_be_in_the_vocabulary(changed):
    with pytest.raises(UserError, match=r"<blank> is missing; expected a vocabulary"):
        changed({"mask_token": "<blank>"})


def test_the_exported_settings_rebuild_no_class(byte_level, golden):
    settings = byte_level.config()
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]
    with_types = load_tokenizer(golden / "tokenizers/bpe").config()
    assert with_types["model_input_names"][1] == "token_type_ids"


@pytest.mark.parametrize("class_name", ["RobertaTokenizer", "PreTrainedTokenizerFast"])
def test_a_class_of_its_own_reads_the_space_from_its_settings(changed, class_name):
    """As in AutoTokenizer, which reads only tokenizer.json for the general class."""
    tokenizer = changed({"tokenizer_class": class_name, "add_prefix_space": True})
    has_space = tokenizer.tokenize("cat") == tokenizer.tokenize(" cat")
    assert has_space is (class_name == "RobertaTokenizer")


def test_a_model_without_a_type_is_what_it_contains(byte_level, changed):
    """Files of old versions of the library have no type."""
    model = json.loads(byte_level.to_json())["model"]
    del model["type"]
    tokenizer = changed(model=model)
    text = "a <mask> cat's \u4e2d"
    assert (
        tokenizer(text)["input_ids"].tolist() == byte_level(text)["input_ids"].tolist()
    )


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        ("tokenizers/added", "c6724e1ba9051d10"),
        ("tokenizers/bpe", "f08d015ed00ceebf"),
        ("tokenizers/unigram", "fea7428624e22a45"),
        ("huggingface/tokenizer", "08b16d93f9af7093"),
        ("tokenizer/uncased_vocab.txt", "1972ea29524b62f7"),
    ],
)
def test_fingerprints_with_berts_special_tokens_are_those_of_0_3_0(
    golden, name, fingerprint
):
    """A store of an older version has the fingerprint of its vocabulary."""
    assert load_tokenizer(golden / name).fingerprint()[:16] == fingerprint


def test_text_that_spells_a_special_token_is_ordinary(byte_level):
    for token in (*FAIRSEQ_TOKENS, *BERT_TOKENS):
        ids = byte_level.encode(f"a {token} cat")
        assert not {*ids} & {*byte_level.template_ids, 1, 3, byte_level.mask_id}
        assert byte_level.decode(ids) == f"a {token} cat"


def test_a_bert_vocabulary_may_give_all_texts_the_type_0(golden, tmp_path):
    """A BERT vocabulary whose file gives all tokens the type 0 is accepted."""
    source = golden / "huggingface/tokenizer/tokenizer.json"
    parts = json.loads(source.read_text())
    for item in parts["post_processor"]["pair"]:
        next(iter(item.values()))["type_id"] = 0
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    plain, zeros = load_tokenizer(source), load_tokenizer(tmp_path)
    assert (plain.kind, zeros.kind) == ("wordpiece", "tokenizers")
    ours, theirs = zeros("the cat", "a bee"), plain("the cat", "a bee")
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
    assert not ours["token_type_ids"].any() and theirs["token_type_ids"].any()


@pytest.mark.parametrize("files", ["merges.txt", "vocab.json"])
def test_vocab_json_needs_merges_and_the_special_tokens(folder, files):
    path = folder("byte_level")
    if files == "merges.txt":
        (path / files).unlink()
    else:
        tokens = json.loads((path / files).read_text())
        tokens["<other>"] = tokens.pop("<mask>")
        (path / files).write_text(json.dumps(tokens))
    with pytest.raises(
        UserError, match=r"merges\.txt is missing; expected it|<mask> is missing"
    ) as e:
        load_tokenizer(path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("name", ["HerbertTokenizer", "HerbertTokenizerFast"])
def test_vocab_json_of_another_class_is_refused(folder, name, file):
    """HerBERT's vocab.json and merges.txt are not a byte-level BPE."""
    path = folder("byte_level")
    for other in ("tokenizer_config.json", "config.json"):
        (path / other).unlink(missing_ok=True)
    expected = load_tokenizer(path).encode("a cat").tolist()
    (path / file).write_text(f'{{"tokenizer_class": "{name}"}}')
    with pytest.raises(
        UserError, match=f"tokenizer_class={name} in .* expected RobertaTokenizer, or a"
    ):
        load_tokenizer(path)
    (path / file).write_text('{"tokenizer_class": "RobertaTokenizerFast"}')
    assert load_tokenizer(path).encode("a cat").tolist() == expected


def test_the_size_of_the_model_chooses_the_numbers_of_sentencepiece(folder):
    path = folder("notused")
    assert load_tokenizer(path).cls_id == 5
    (path / "config.json").write_text('{"vocab_size": 54}')
    assert load_tokenizer(path).cls_id == 0


@pytest.mark.parametrize(("layout", "cls_id"), [("XLMRoberta", 0), ("Camembert", 5)])
@pytest.mark.parametrize("size", [None, 54, 57, 64])
def test_the_class_chooses_the_numbers_of_sentencepiece(folder, layout, cls_id, size):
    """Even for a model with additional rows, whose size is the other layout's."""
    path = folder("notused")
    (path / "config.json").unlink()
    if size:
        (path / "config.json").write_text(f'{{"vocab_size": {size}}}')
    for name in (f"{layout}Tokenizer", f"{layout}TokenizerFast"):
        settings = path / "tokenizer_config.json"
        settings.write_text(f'{{"tokenizer_class": "{name}"}}')
        assert load_tokenizer(path).cls_id == cls_id


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "tokenizer_class=None in its settings and vocab_size=None in config.json"),
        (
            {"vocab_size": 55},
            "vocab_size=55 .* expected .* 54 as in XLM-R, or 57 as in",
        ),
        ({"vocab_size": 54, "tokenizer_class": "MBartTokenizer"}, "=MBartTokenizer in"),
    ],
)
def test_unknown_numbers_of_sentencepiece_are_refused(folder, settings, message):
    path = folder("notused")
    (path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=message) as e:
        load_tokenizer(path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        ("byte_level", "52fe472fe7090edf"),
        ("add_prefix_space", "ac4d4e00ae923cad"),
        ("fairseq", "a6ce88ce8211c54d"),
        ("notused", "bf3d4ed16c127342"),
    ],
)
def test_fingerprints_do_not_depend_on_the_library(
    folder, monkeypatch, name, fingerprint
):
    """The next version of the library may print other fields, but must read a store."""
    path = folder(name)
    from_str = tokenizers.Tokenizer.from_str

    class Printing:
        """A tokenizer of a library that prints another field."""

        def __init__(self, library):
            self.library = library

        def __getattr__(self, attribute):
            return getattr(self.library, attribute)

        def to_str(self, pretty=False):
            return self.library.to_str(pretty)[:-1] + ', "new": true}'

    def new(model):
        return Printing(tokenizers_class(model))

    tokenizers_class = tokenizers.Tokenizer
    new.from_str = from_str
    monkeypatch.setattr(tokenizers, "Tokenizer", new)
    assert load_tokenizer(path).fingerprint()[:16] == fingerprint


def test_words_of_byte_level_tokens(byte_level):
    def words(text):
        ids, _ = byte_level.build(byte_level.encode(text))
        starts = byte_level.word_starts(ids)
        groups = np.split(ids, np.flatnonzero(starts)[1:])
        return [byte_level.decode(group) for group in groups]

    assert words("the bee's") == ["<s>", "the", " bee's", "</s>"]
    assert words("\u4e2d\u6587") == ["<s>", "\u4e2d", "\u6587", "</s>"]
    # A character of several tokens is one word, even after a letter.
    text = "a\u81ea\u7136 \u8bed.\u3042"
    assert len(byte_level.tokenize(text)) > 12
    expected = ["a", "\u81ea", "\u7136", " ", "\u8bed.", "\u3042"]
    assert words(text) == ["<s>", *expected, "</s>"]
    pair, _ = byte_level.build(byte_level.encode("cat"), byte_level.encode("bees"))
    starts = byte_level.word_starts(pair)
    first, second = byte_level.starts(3, 0)[0], byte_level.starts(*[3, 0])[1]
    assert not byte_level.continuation[byte_level.template_ids].any()
    assert starts[first] and byte_level.continuation[pair[first]]
    assert second <= len(pair)


@pytest.mark.parametrize("masking", ["token", "whole_word"])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_pretraining_examples_have_the_template(
    byte_level, array_store, masking, next_sentence
):
    """Texts are whole, special tokens are never masked, and words are masked whole."""
    documents = []
    for number in range(6):
        parts = [f"the cat {number} sat", "a bee sat on it.", "don't (see) the mat"] * 5
        documents.append(byte_level.encode_batch(byte_level.spaced(parts)))
    config = ExampleConfig(
        masking,
        mask_rate=0.3,
        mask_share=1,
        random_share=0,
        next_sentence=next_sentence,
    )
    source = ExampleSource(
        array_store(documents),
        byte_level,
        config,
        sequence_length=48,
        max_predictions=12,
        seed=3,
    )
    batch = source.draw(range(60))
    lengths = source.text_lengths(range(60)).tolist()
    assert not batch["token_type_ids"].any()
    for i, (a, b) in enumerate(lengths):
        used = batch["mlm_weights"][i] > 0
        places = batch["mlm_positions"][i][used]
        ids = batch["input_ids"][i].copy()
        assert (ids[places] == byte_level.mask_id).all() and len(places)
        ids[places] = batch["mlm_ids"][i][used]
        total = source.lengths(range(60))[i]
        ids = ids[:total]
        first, second = byte_level.starts(a, b)
        texts = [ids[first : first + a]]
        if b:
            texts.append(ids[second : second + b])
        np.testing.assert_array_equal(ids, byte_level.build(*texts)[0])
        assert not np.isin(np.concatenate(texts), byte_level.template_ids).any()
        if masking == "whole_word":
            masked = np.isin(np.arange(total), places)
            inside = ~byte_level.word_starts(ids)
            assert (masked[1:] == masked[:-1])[inside[1:]].all()


def test_many_texts_have_the_ids_of_single_texts(byte_level, monkeypatch):
    """Even in several batches of the library, and for texts that UTF-8 cannot encode."""
    monkeypatch.setattr(library, "_BATCH", 3)
    texts = ["the cat", "", " a  <mask> bee", "a\ud800b", "\u4e2d</s>", "x", "the mat"]
    for count in range(len(texts) + 1):
        rows = byte_level.encode_batch(texts[:count])
        assert len(rows) == count
        for text, ids in zip(texts, rows, strict=False):
            assert ids.dtype == byte_level.dtype
            assert ids.tolist() == byte_level.encode(text).tolist()


def test_a_sequence_needs_room_for_two_texts(byte_level, array_store):
    store = array_store([byte_level.encode_batch(["the cat", "a bee"])] * 3)
    with pytest.raises(UserError, match="sequence_length=5, expected at least 6"):
        ExampleSource(
            store,
            byte_level,
            ExampleConfig(),
            sequence_length=5,
            max_predictions=1,
            seed=0,
        )


def test_no_file_assumes_berts_special_tokens():
    """Only the tokenizer knows them: no other file has their names, or finds the second
    text by its type."""
    names = {*BERT_TOKENS, *FAIRSEQ_TOKENS}
    allowed = {"tokenizer.py", "spiece.py", "vocabulary_training.py", "wordpiece.py"}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name == "data" and path.name in allowed:
            continue
        source = path.read_text()
        where = path.relative_to(PACKAGE)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in names, f"{where}:{node.lineno}"
            if isinstance(node, ast.Attribute) and path.name != "tokenizer_files.py":
                assert node.attr not in ("cls_id", "sep_id"), f"{where}:{node.lineno}"
            if isinstance(node, ast.Compare | ast.Call):
                text = ast.unparse(node)
                compares = isinstance(node, ast.Compare) and "max(" not in text
                sums = text.endswith((".sum()", ".argmax()"))
                if compares or sums:
                    assert "token_type_ids" not in text, f"{where}:{node.lineno}"
