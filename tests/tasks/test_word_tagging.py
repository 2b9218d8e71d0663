import csv
import dataclasses
import json
import re
import types
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers

import bert_jax
from bert_jax.data import sequences
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.splits import raw_rows
from bert_jax.tasks.tagging_formats import Sentence
from bert_jax.tasks.task import IGNORED, objects_of, with_columns, write_answers
from bert_jax.tasks.word_tagging import Tagging, TaggingConfig, tagged, widen

LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


@pytest.fixture(scope="module")
def uncased(golden):
    return load_tokenizer(golden / "tokenizer" / "uncased_vocab.txt")


def make_task(**changes):
    return Tagging(TaggingConfig(**{"task": "columns", "labels": LABELS} | changes))


def make_row(words, tags=None, document=0):
    tags = None if tags is None else tuple(tags.split())
    return Sentence(tuple(words.split()), tags, document, "file.txt:1")


def logits_for(features, labels, tags):
    """Logits with the maximum at tags[row][word] for each word that a sequence predicts."""
    outputs = []
    for row, ids, (words, positions) in zip(
        features.example, features.input_ids, features.extra, strict=True
    ):
        logits = np.zeros((len(ids), len(labels)), np.float32)
        logits[positions, [labels.index(tags[row][w]) for w in words]] = 3
        outputs.append(logits)
    return outputs


def answer(task, tokenizer, rows, tags):
    features = task.encode(rows, tokenizer)
    return task.decode(rows, features, logits_for(features, task.labels, tags))


def test_first_tokens_of_words_have_the_labels(uncased):
    task = make_task()
    row = make_row("Johanson \x07 lives", "B-PER I-PER O")
    features = task.encode([row], uncased)
    tokens = [uncased.tokens[i] for i in features.input_ids[0]]
    assert tokens == ["[CLS]", "johan", "##son", "[UNK]", "lives", "[SEP]"]
    (labels,) = features.targets["labels"]
    assert labels.tolist() == [IGNORED, 1, IGNORED, 3, 4, IGNORED]
    assert features.token_type_ids[0].tolist() == [0] * 6
    for array in (features.input_ids[0], features.token_type_ids[0], labels):
        assert array.dtype == np.int32
    assert features.example.tolist() == [0] and features.example.dtype == np.int32
    assert features.truncated == 0
    assert task.outputs == 5
    unlabelled = task.encode([make_row("a b")], uncased)
    assert unlabelled.targets == {}


@pytest.mark.parametrize("context", [False, True])
def test_words_have_the_tokens_of_their_text(golden, context):
    """In a byte-level BPE the tokens of a word depend on the space before it.

    Each word has it, even the first word, so that a list of words has the same tokens in
    transformers with the exported tokenizer.
    """
    bpe = load_tokenizer(golden / "templates/byte_level")
    rows = [
        make_row("the cat's (see) bee", "O B-PER O O", 1),
        make_row("sat on the mat", "O O O B-LOC", 1),
    ]
    task = make_task(max_length=40, document_context=context)
    features = task.encode(rows, bpe)
    texts = [" ".join(row.words) for row in rows]
    if context:
        texts = [" ".join(texts)] * 2
    decoded = [bpe.decode(ids[1:-1]) for ids in features.input_ids]
    assert decoded == [f" {text}" for text in texts]
    exported = tokenizers.Tokenizer.from_str(bpe.of_words().to_json().decode())
    of_exported = task.encode(rows, bpe.of_words()).input_ids
    for i, text in enumerate(texts):
        ids = features.input_ids[i]
        assert ids.tolist() == bpe.build(bpe.encode(f" {text}"))[0].tolist()
        assert ids.tolist() == exported.encode(text.split(), is_pretokenized=True).ids
        assert ids.tolist() == exported.encode(text).ids == of_exported[i].tolist()
        # The first token of each word has its label.
        _, positions = features.extra[i]
        labels = features.targets["labels"][i]
        assert np.flatnonzero(labels != IGNORED).tolist() == positions.tolist()
        numbers = [task.labels.index(tag) for tag in rows[i].tags]
        assert labels[positions].tolist() == numbers
        for word, position in zip(rows[i].words, positions, strict=True):
            token = bpe.decode(ids[position])
            assert word.startswith(token.strip())
            assert token.startswith(" ")


@pytest.mark.parametrize("context", [False, True])
def test_every_word_counts_and_is_predicted_once(uncased, context):
    rng = np.random.default_rng(0)
    vocabulary = np.array(
        ["sea", "Queequeg", "\x00", "whale", "harpooneers", ".", "unfathomable"]
    )
    sizes, documents = rng.integers(1, 60, 25), np.sort(rng.integers(0, 6, 25))
    rows = [
        make_row(
            " ".join(rng.choice(vocabulary, n)), " ".join(rng.choice(LABELS, n)), d
        )
        for n, d in zip(sizes, documents, strict=True)
    ]
    task = make_task(max_length=24, stride=7, document_context=context)
    features = task.encode(rows, uncased)
    assert (np.diff(features.example) >= 0).all()
    assert max(map(len, features.input_ids)) <= 24
    assert max(np.bincount(features.example)) > 3
    longer = make_task(max_length=24, stride=22, document_context=context)
    assert len(longer.encode(rows, uncased).example) < len(features.example)
    predicted = [[] for _ in rows]
    for row, labels, (words, positions) in zip(
        features.example, features.targets["labels"], features.extra, strict=True
    ):
        assert np.flatnonzero(labels != IGNORED).tolist() == positions.tolist()
        assert [task.labels[i] for i in labels[positions]] == [
            rows[row].tags[w] for w in words
        ]
        predicted[row] += words.tolist()
    assert [sorted(words) for words in predicted] == [
        list(range(len(row.words))) for row in rows
    ]
    tags = [tuple(rng.choice(LABELS, len(row.words))) for row in rows]
    answers = task.decode(rows, features, logits_for(features, LABELS, tags))
    assert [a["tags"] for a in answers] == [list(map(str, t)) for t in tags]


def test_windows_overlap_by_half_without_a_stride(uncased):
    rows = [make_row("sea " * 60)]
    default, half, whole = (
        make_task(max_length=24, **stride).encode(rows, uncased)
        for stride in ({}, dict(stride=11), dict(stride=22))
    )
    assert [x.tolist() for x in default.input_ids] == [
        x.tolist() for x in half.input_ids
    ]
    assert [words.tolist() for words, _ in default.extra] == [
        words.tolist() for words, _ in half.extra
    ]
    assert len(default.input_ids) == 5 and len(whole.input_ids) == 3


def test_a_word_longer_than_the_window_is_cut(uncased):
    task = make_task(max_length=6)
    rows = [make_row("a " + "x" * 30 + " b", "O B-PER O"), make_row("a b", "O O")]
    features = task.encode(rows, uncased)
    assert features.truncated == 1
    assert max(map(len, features.input_ids)) == 6
    answers = answer(task, uncased, rows, [row.tags for row in rows])
    assert [tuple(a["tags"]) for a in answers] == [row.tags for row in rows]


def test_document_context_surrounds_the_sentence(uncased):
    rows = [
        make_row("one two three", "O O O", 1),
        make_row("four five", "B-PER O", 1),
        make_row("six seven eight nine", "O O O O", 1),
        make_row("ten", "B-LOC", 2),
    ]
    task = make_task(max_length=9, document_context=True)
    features = task.encode(rows, uncased)
    text = [uncased.decode(ids[1:-1]) for ids in features.input_ids]
    assert text == [
        "one two three four five six seven",
        "two three four five six seven eight",
        "three four five six seven eight nine",
        "ten",
    ]
    labelled = [np.flatnonzero(x != IGNORED) for x in features.targets["labels"]]
    assert [*map(list, labelled)] == [[1, 2, 3], [3, 4], [4, 5, 6, 7], [1]]
    # Sentences of no document follow each other.
    texts = [" ".join(row.words) for row in rows[1:3]]
    features = task.encode([*objects_of(task, raw_rows(texts, task.form))], uncased)
    text = [uncased.decode(ids[1:-1]) for ids in features.input_ids]
    assert text == ["four five six seven eight nine"] * 2
    # Without document_context a sentence has no context.
    task = make_task(max_length=9)
    features = task.encode(rows, uncased)
    assert [len(ids) - 2 for ids in features.input_ids] == [3, 2, 4, 1]


def test_entities_have_probabilities(uncased):
    task = make_task()
    rows = [make_row("Peter Blackburn saw New York")]
    (prediction,) = answer(
        task, uncased, rows, [["B-PER", "I-PER", "O", "B-LOC", "I-LOC"]]
    )
    p = np.exp(3) / (np.exp(3) + 4)
    assert prediction["words"] == ["Peter", "Blackburn", "saw", "New", "York"]
    assert prediction["tags"] == ["B-PER", "I-PER", "O", "B-LOC", "I-LOC"]
    assert prediction["probabilities"] == pytest.approx([p] * 5)
    person = {"type": "PER", "text": "Peter Blackburn", "start": 0, "end": 2}
    place = {"type": "LOC", "text": "New York", "start": 3, "end": 5}
    both = {"probability": pytest.approx(p * p)}
    assert prediction["entities"] == [person | both, place | both]
    json.dumps(prediction)


@pytest.mark.parametrize("letters", ["BIES", "BILU", "BMES"])
def test_spans_of_schemes_with_ends_and_conllevals_input(letters, uncased, tmp_path):
    begin, inside, end, single = letters
    labels = (*(f"{p}-{t}" for p in letters for t in ("LOC", "PER")), "O")
    task = make_task(labels=labels)
    gold = f"{single}-PER {single}-PER O {begin}-LOC {inside}-LOC {end}-LOC"
    rows = [make_row("a b c d e f", gold), make_row("g", "O")]
    answers = answer(task, uncased, rows, [gold.split(), [f"{single}-LOC"]])
    assert task.kind == "entities" and answers[0]["tags"] == gold.split()
    spans = [(e["type"], e["start"], e["end"]) for e in answers[0]["entities"]]
    assert spans == [("PER", 0, 1), ("PER", 1, 2), ("LOC", 3, 6)]
    scores = task.score(rows, answers)
    assert scores["f1"] == pytest.approx(100 * 6 / 7)
    assert scores["recall"] == 100
    (path,) = write_answers(task, rows, answers, "dev", tmp_path / "out")
    lines = (
        "a B-PER B-PER,b B-PER B-PER,c O O,d B-LOC B-LOC,e I-LOC I-LOC,f I-LOC I-LOC"
    )
    assert path.read_text() == lines.replace(",", "\n") + "\n\ng O B-LOC\n\n"


def test_tags_are_texts_or_numbers_with_names():
    task = bert_jax.tasks.tagging().with_rows(train=[("Ahab sails", "I-PER O")])
    assert task.labels == ("B-PER", "O", "I-PER")
    expected = ("Ahab", "sails"), ("B-PER", "O")
    assert [(row.words, row.tags) for row in task.read("train")] == [expected]
    rows = [{"tokens": ["Ahab", "sails"], "ner_tags": [1, 0]}]
    with pytest.raises(
        UserError, match=r"row 0 has 2 words and the tags .*data\.labels"
    ):
        bert_jax.tasks.tagging().with_rows(train=rows).read("train")
    task = bert_jax.tasks.tagging(labels=("O", "B-PER")).with_rows(train=rows)
    assert [(row.words, row.tags) for row in task.read("train")] == [expected]
    # If the names are numbers, a number is taken as a name.
    task = bert_jax.tasks.tagging(labels=("1", "0", "2")).with_rows(train=rows)
    assert task.read("train")[0].tags == ("1", "0")


def test_parts_of_speech_are_predicted(uncased, tmp_path):
    task = make_task(labels=("DT", "NN", "O"))
    rows = [make_row("the sea the", "DT NN DT"), make_row("a", "DT")]
    answers = answer(task, uncased, rows, [("DT", "NN", "NN"), ("DT",)])
    assert task.kind == "tags"
    assert task.main_metric == "accuracy"
    assert task.score(rows, answers) == {"accuracy": 75}
    assert "entities" not in answers[0]
    rows[0] = dataclasses.replace(
        rows[0], words=("the", "deep\xa0sea", "the"), tags=None
    )
    (path,) = write_answers(task, rows[:1], answers[:1], "test", tmp_path)
    assert path.read_text() == "the DT\ndeep_sea NN\nthe NN\n\n"


def test_words_are_segmented_and_scored(parse, uncased, tmp_path):
    (tmp_path / "dev.txt").write_text("中国 人民\n我 爱 北京\n", "utf-8")
    task = Tagging(
        TaggingConfig("segmented", dir=str(tmp_path), document_context=False)
    )
    assert task.labels == tuple("BEMS")
    assert task.main_metric == "f1"
    assert task.splits.scored == ("dev",)
    rows = task.read("dev")
    assert ["".join(row.tags) for row in rows] == ["BEBE", "SSBE"]
    # Predicted: 中国人民 as one word, 我 爱 北 京. Two (我 爱) of 5 gold and 5 predicted
    # words are right.
    answers = answer(task, uncased, rows, ["BMME", "SSSS"])
    scores = task.score(rows, answers)
    assert scores["f1"] == pytest.approx(40)
    assert scores["precision"] == scores["recall"] == pytest.approx(40)
    assert scores["accuracy"] == pytest.approx(50)
    assert set(scores) == {"f1", "precision", "recall", "accuracy"}
    assert [e["text"] for e in answers[0]["entities"]] == ["中国人民"]
    (text,) = write_answers(task, rows, answers, "dev", tmp_path)
    assert text.name == "dev.segmented.txt"
    assert text.read_text("utf-8") == "中国人民\n我 爱 北 京\n"
    (row,) = parse(task, ["我爱 北京\n"], "-")
    assert row.words == tuple("我爱北京")
    assert row.tags is None
    rows = [{"words": list("我北京"), "tags": list("SBE")}]
    columns = Tagging(TaggingConfig("columns")).with_rows(train=rows)
    assert (columns.kind, columns.labels) == ("words", tuple("BEMS"))


CONLL = "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\n\nBonn NNP I-NP I-LOC\nis V V O\n"


@pytest.mark.parametrize("scheme", ["auto", "iob1", "iob2"])
def test_conll_2003_is_read_by_either_file_name(tmp_path, scheme):
    (tmp_path / "eng.train").write_text(CONLL)
    (tmp_path / "valid.txt").write_text(CONLL.replace("I-LOC", "I-ORG"))
    task = Tagging(
        TaggingConfig(
            "conll2003", dir=str(tmp_path), scheme=scheme, document_context=True
        )
    )
    assert task.labels == ("B-LOC", "B-ORG", "O", "I-LOC", "I-ORG")
    assert task.kind == "entities"
    assert task.splits.scored == ("dev",)
    assert [row.tags for row in task.read("train")] == [("B-ORG",), ("B-LOC", "O")]
    assert [row.tags for row in task.read("dev")] == [("B-ORG",), ("B-ORG", "O")]
    (tmp_path / "eng.testb").write_text(CONLL)
    assert Tagging(task.config).splits.scored == ("dev", "test")
    again = Tagging(dataclasses.replace(task.config, dir="", labels=task.labels))
    assert (again.kind, again.outputs) == ("entities", 5)


def test_wnut_17_files_are_read(tmp_path):
    text = "go\tO\nJane\tB-person\n\t\nok\tO\n"
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        (tmp_path / name).write_text(text)
    task = Tagging(TaggingConfig("wnut17", dir=str(tmp_path)))
    assert task.splits.scored == ("dev", "test")
    rows = task.read("test")
    answers = [{"tags": list(row.tags)} for row in rows]
    assert task.score(rows, answers) == dict.fromkeys(
        ("accuracy", "f1", "precision", "recall", "f1/person"), 100
    )


def test_words_of_rows_are_read(parse):
    """A list contains the words of a sentence. A text is split into words."""
    task = make_task()
    rows = parse(task, ["EU rejects\n", '{"words": "a"}\n', " \n"], "in.txt")
    brackets = ("{", '"', "words", '"', ":", '"', "a", '"', "}")
    assert [row.words for row in rows] == [("EU", "rejects"), brackets, ()]
    assert [row.where for row in rows] == ["in.txt:1", "in.txt:2", "in.txt:3"]
    rows = [["New York", "!"], "EU rejects.", {"tokens": ["a"], "id": 7}, (["b", "c"],)]
    parsed = list(objects_of(task, raw_rows(rows, task.form)))
    words = [("New York", "!"), ("EU", "rejects", "."), ("a",), ("b", "c")]
    assert [row.words for row in parsed] == words
    assert [row.id for row in parsed] == [None, None, 7, None]
    for values, message in (
        ({"word": "a"}, "in:1: no column 'words' or 'tokens' or 'text'"),
        ({"words": ["a", 3]}, 'in:1: "words" is not a list'),
        ({"words": 3}, 'in:1: "words" is not a list'),
    ):
        with pytest.raises(UserError, match=message):
            task.row("in:1", values, labelled=False)


def random_offsets(rng, words, longest):
    return np.cumsum([0, *rng.integers(1, longest + 1, words)])


def test_widening_fills_the_window_from_both_sides():
    rng = np.random.default_rng(0)
    balanced = 0
    for _ in range(300):
        capacity = int(rng.integers(8, 60))
        offsets = random_offsets(rng, 60, 5)
        low, start, stop, high = sorted(rng.choice(61, 4, replace=False).tolist())
        stop = sequences.windows(offsets, (start, stop), capacity, capacity)[0][1]
        a, b = widen(offsets, (start, stop), (low, high), capacity)
        assert low <= a <= start and stop <= b <= high
        room = capacity - (offsets[b] - offsets[a])
        assert room >= 0
        assert a == low or offsets[a] - offsets[a - 1] > room
        assert b == high or offsets[b + 1] - offsets[b] > room
        if a > low and b < high:
            sides = (offsets[start] - offsets[a], offsets[b] - offsets[stop])
            assert abs(sides[0] - sides[1]) <= 2 * 5
            balanced += 1
    assert balanced > 20


@pytest.mark.parametrize(
    "how, words",
    [
        ("treebank", ("b", "'s", "a", ".")),
        ("blanks", ("b's", "a.")),
        ("clitics", ("b", "'s", "a", ".")),  # models of version 0.1.0
    ],
)
def test_a_text_is_split_into_words(parse, uncased, how, words):
    task = make_task(splitting=how)
    rows = parse(task, ["b's a."])
    assert rows[0].words == words
    (prediction,) = answer(
        task, uncased, rows, [["B-PER", *["I-PER"] * (len(words) - 1)]]
    )
    assert prediction["offsets"][-1][1] == 6
    assert prediction["entities"][0]["text"] == "b's a."
    assert prediction["entities"][0]["characters"] == [0, 6]


@pytest.mark.parametrize(
    "name, tags, place",
    [
        ("train.txt", "O B-Y Q-X", 2),
        ("train.tsv", "B-X I-X I", 2),
        ("train.jsonl", "B-X X O", 1),
        ("train.txt", "B-X S-X O", 0),
        ("train.tsv", "S-X O B-X O", 2),  # ends without E-
        ("train.txt", "U-X B-X O L-X", 1),
        ("train.txt", "S B E M E", 3),
    ],
)
def test_the_error_has_the_place_of_a_wrong_tag(tmp_path, name, tags, place):
    tags = tags.split()
    words = [f"w{i}" for i in range(len(tags))]
    lines = "".join(f"{x}\t{tag}\n" for x, tag in zip(words, tags, strict=True))
    if name == "train.jsonl":
        lines = json.dumps({"words": words, "tags": tags})
    (tmp_path / name).write_text(lines)
    task = bert_jax.tasks.tagging(dir=str(tmp_path), train=name)
    problem = f"{name}:1: the word 'w{place}' has the tag '{tags[place]}'"
    with pytest.raises(UserError, match=re.escape(problem)) as error:
        task.read("train")
    assert f"expected a tag of {task.scheme} (data.scheme)" in str(error.value)


@pytest.mark.parametrize(
    ("tags", "learned"),
    [
        ("I-X O I-X I-X", "S-X O B-X E-X"),
        ("S-X B-X E-X O I-X E-X", "S-X B-X E-X O B-X E-X"),  # starts without B-
        ("S-X B-X I-X O", "S-X B-X E-X O"),  # ends without E-
        ("S-X B-X M-X B-X E-X O", "S-X B-X E-X B-X E-X O"),
        ("B-X O I-X I-X", "B-X O B-X I-X"),
    ],
)
def test_a_stray_inside_tag_is_read_as_conlleval_reads_it(tags, learned):
    words = [f"w{i}" for i in range(len(tags.split()))]
    whole = "B-X I-X I-X" if learned.startswith("B-X O") else "B-X I-X E-X S-X"
    whole = whole.replace("I", "M") if "M" in tags else whole
    rows = [(words, tags.split()), (whole.lower().split(), whole.split())]
    (row, _) = bert_jax.tasks.tagging().with_rows(train=rows).read("train")
    assert row.tags == tuple(learned.split())


def test_labels_have_every_letter_of_every_type():
    """Tags of dev and tags that no row has are also learned."""
    rows, dev = [(["a"], ["B-X"])], [(["b"], ["B-Y"]), (["c"], ["O"])]
    task = bert_jax.tasks.tagging().with_rows(train=rows, dev=dev, test=dev)
    assert task.labels == ("B-X", "B-Y", "O", "I-X", "I-Y")
    assert [row.tags for row in task.read("dev")] == [("B-Y",), ("O",)]
    test = [(["b"], ["B-Z"])]
    task = bert_jax.tasks.tagging().with_rows(train=rows, dev=dev, test=test)
    with pytest.raises(
        UserError, match=r"test, row 0: the word 'b'.* in the label set B-X, B-Y, O"
    ):
        task.read("test")
    single = bert_jax.tasks.tagging().with_rows(train=[(["a", "b"], ["S-X", "O"])])
    assert single.labels == ("O", "S-X", "B-X", "E-X", "I-X")
    given = bert_jax.tasks.tagging(labels=("O", "B-X")).with_rows(train=rows)
    assert given.labels == ("O", "B-X")
    numbers = [([*"abc"], ["10", "9", "2"])]
    assert bert_jax.tasks.tagging().with_rows(train=numbers).labels == ("2", "9", "10")


@pytest.mark.parametrize("seed", range(10))
def test_a_tag_of_one_row_trains_for_every_seed(seed):
    rows = [(["in", "Rome"], ["O", "B-LOC"])] * 30
    rows.append((["New", "York"], ["B-LOC", "I-LOC"]))
    task = bert_jax.tasks.tagging().with_rows(train=rows, held_out=0.1, seed=seed)
    assert task.labels == ("B-LOC", "I-LOC", "O")
    assert len(task.read("train") + task.read("dev")) == 31


def test_settings_name_the_columns_of_words_and_tags():
    row = {"wort": ["Ahab", "sails"], "marke": ["B-PER", "O"], "tags": ["O", "O"]}
    task = bert_jax.tasks.tagging(words="wort", tags="marke").with_rows(train=[row])
    assert task.read("train")[0].tags == ("B-PER", "O")
    for settings in (
        {"words": "word", "tags": "marke"},
        {"words": "wort", "tags": "x"},
    ):
        with pytest.raises(
            UserError, match=r"no column '(word|x)'; the columns are wo"
        ):
            bert_jax.tasks.tagging(**settings).with_rows(train=[row])
    # Before 0.3 the setting words had the meaning of splitting.
    old = bert_jax.tasks.tagging(words="blanks").config
    assert (old.words, old.splitting) == ("", "blanks")


def test_an_empty_word_has_a_tag(uncased):
    words, tags = ["Ahab", "", "sails"], ["B-PER", "O", "O"]
    task = bert_jax.tasks.tagging().with_rows(train=[dict(words=words, tags=tags)])
    (row,) = task.read("train")
    assert row.words == tuple(words)
    (features,) = task.encode([row], uncased).targets["labels"]
    assert (features != IGNORED).sum() == 3
    (parsed,) = objects_of(task, [("row 0", ("Ahab", "", "sails"))])
    assert parsed.words == tuple(words)
    with pytest.raises(UserError, match="row 0 has 3 words and the tags"):
        bert_jax.tasks.tagging().with_rows(
            train=[dict(words=words, tags=["B-PER", "", "O"])]
        ).read("train")


def test_the_name_of_a_file_decides_how_it_is_predicted(tmp_path):
    """Not its content: the last word of a text may be the name of a tag."""
    task = make_task()
    for name, text, expected in (
        ("a.conll", "in O\nRome Q-X\n", True),
        ("a.CoNLLU.gz", "", True),
        ("b.txt", "blood type O\nin B-LOC\n", False),
        ("b.tsv", "text\nB-LOC\n", False),
        ("d.jsonl", '{"text": "see Rome"}\n', False),
    ):
        (tmp_path / name).write_text(text)
        assert task.form.is_own(tmp_path / name) == expected, name
    rows = [*objects_of(task, raw_rows(tmp_path / "a.conll", task.form))]
    assert [(row.words, row.tags) for row in rows] == [(("in", "Rome"), None)]
    rows = [*objects_of(task, raw_rows(tmp_path / "b.txt", task.form))]
    assert [row.words for row in rows] == [("blood", "type", "O"), ("in", "B-LOC")]


SENTENCES = [(["New York", "it's", "( a )"], ["B-LOC", "O", "O"]), (["a"], ["B-PER"])]


@pytest.mark.parametrize(
    "printed", [json.dumps, str, lambda x: str((*x,)), lambda x: str(np.array(x))]
)
def test_lists_in_cells_are_words_and_tags(printed, tmp_path):
    path = tmp_path / "train.csv"
    cells = [[printed(words), printed(tags)] for words, tags in SENTENCES]
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerows([["words", "tags"], *cells])
        writer.writerow(["( see above )", "O O O O"])
        writer.writerow(["[ 1 ]", "O O O"])
    frame = [dict(zip(("words", "tags"), row, strict=True)) for row in cells]
    expected = [(tuple(words), tuple(tags)) for words, tags in SENTENCES]
    read = make_task().with_rows(train=frame).read("train")
    assert [(row.words, row.tags) for row in read] == expected
    read = make_task(train="train.csv", dir=str(tmp_path)).read("train")
    assert [(row.words, row.tags) for row in read[:2]] == expected
    assert [row.words for row in read[2:]] == [
        ("(", "see", "above", ")"),
        ("[", "1", "]"),
    ]


@pytest.mark.parametrize(
    "words, tags, column",
    [
        ("[anna, walks]", "[B-PER, O]", "tags"),
        ("['anna' 'walks'", "B-PER O", "words"),
        ("[sic] anna walks", "O O", "words"),
    ],
)
def test_a_cell_that_is_no_list_is_refused(words, tags, column, tmp_path):
    path = tmp_path / "dev.csv"
    with path.open("w") as file:
        csv.writer(file).writerows([["words", "tags"], ["a", "O"], [words, tags]])
    with pytest.raises(
        UserError, match=rf"dev\.csv:3: column '{column}' starts like a l"
    ):
        make_task().with_rows(dev=path).read("dev")


def test_a_text_to_predict_is_never_a_list():
    task = make_task()
    texts = ["['a', 'b'] (c)", "(c"]
    rows = [
        *objects_of(task, raw_rows([*texts, *({"text": x} for x in texts)], task.form))
    ]
    assert [row.text for row in rows] == texts * 2
    named = with_columns(task, "review")
    cells = [{"review": "[sic] a"}, {"review": '["New York", "a"]'}]
    first, second = objects_of(named, raw_rows(cells, named.form))
    assert first.text == "[sic] a" and second.words == ("New York", "a")
    rows = [{"words": "['a' 'b']"}, {"tokens": '["a", "b"]'}]
    for row in rows:
        assert [x.words for x in objects_of(task, raw_rows([row], task.form))] == [
            ("a", "b")
        ]
    for text in ("( see above )", "[ 1 ]", "[sic] a"):
        (row,) = objects_of(task, raw_rows([{"words": text}], task.form))
        assert row.text == text
    for damaged in ("[a, b]", "['a', 'b", "array(['a'"):
        with pytest.raises(UserError, match="row 0: column 'words' starts like a list"):
            [*objects_of(task, raw_rows([{"words": damaged}], task.form))]


def test_a_tsv_file_with_a_header_is_a_table(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("id\ttext\ttags\n7\tJohn sings\tB-PER O\n")
    (row,) = make_task().with_rows(train=path).read("train")
    assert (row.words, row.tags, row.id) == (("John", "sings"), ("B-PER", "O"), "7")
    path.write_text("tags\tO\ntok\tO\nsings\tO\n\nJohn\tB-PER\n")
    rows = make_task().with_rows(train=path).read("train")
    assert [row.words for row in rows] == [("tags", "tok", "sings"), ("John",)]


def test_conll_u_needs_the_column_of_the_tags(tmp_path):
    path = tmp_path / "train.conllu"
    path.write_text("1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No\n")
    task = make_task(labels=())
    with pytest.raises(UserError, match=r"train\.conllu: .* set data\.column=3 for"):
        task.with_rows(train=path)
    (row,) = make_task(labels=(), column=3).with_rows(train=path).read("train")
    assert row.tags == ("VERB",)
    (row,) = objects_of(make_task(), raw_rows(path, task.form))  # tags are not needed
    assert row.words == ("Vamos",)


def test_numbers_in_dev_are_the_tags_that_train_declares():
    class Declared(list):
        features = types.MappingProxyType(
            {"tags": SimpleNamespace(names=["O", "B-PER", "I-PER"])}
        )

    train = Declared([{"words": ["Ahab", "sails"], "tags": [1, 0]}])
    dev = [{"words": ["Captain", "Ahab"], "tags": [1, 2]}]
    task = bert_jax.tasks.tagging().with_rows(train=train, dev=dev)
    assert task.read("train")[0].tags == ("B-PER", "O")
    assert task.read("dev")[0].tags == ("B-PER", "I-PER")
    assert task.labels == ("O", "B-PER", "I-PER")


def test_tags_may_have_no_type():
    rows = [("the white whale swims", "O B I O"), ("the sea", "O B")]
    task = bert_jax.tasks.tagging().with_rows(train=rows, dev=rows[1:])
    assert (task.scheme, task.labels) == ("iob2", ("B", "I", "O"))
    row = task.read("train")[0]
    assert row.tags == ("O", "B", "I", "O")
    answer = tagged(task, row, np.eye(3)[[2, 0, 1, 2]])
    (entity,) = answer["entities"]
    assert (entity["type"], entity["text"]) == ("_", "white whale")
    assert task.score([row], [answer]) == {
        "accuracy": 100,
        "f1": 100,
        "precision": 100,
        "recall": 100,
    }
    with pytest.raises(UserError, match=r"'X'; .* in the label set B, I, O \(d"):
        bert_jax.tasks.tagging().with_rows(train=[*rows, ("a b", "B X")]).read("train")
    bilou = [("a b c d", "B I L U"), ("a", "O")]
    task = bert_jax.tasks.tagging().with_rows(train=bilou)
    assert (task.scheme, task.labels) == ("bilou", ("B", "I", "L", "O", "U"))


def test_rows_of_one_word_give_a_warning(caplog):
    rows = [(["Anna"], ["B-PER"]), (["walks"], ["O"])]
    task = bert_jax.tasks.tagging().with_rows(train=rows)
    task.read("train")
    assert "each row of train has one word; a row is a whole sentence" in caplog.text


@pytest.mark.parametrize("tags", [["b-per", "o", "i-loc"], ["PER-B", "O", "LOC-I"]])
def test_entities_in_a_form_of_no_scheme_give_a_warning(tags, caplog):
    task = bert_jax.tasks.tagging().with_rows(train=[(["Anna", "in", "Rome"], tags)])
    assert set(task.labels) == set(tags)
    assert "for the F1 of entities write them as B-PER, I-PER and O" in caplog.text


def test_files_are_found_by_their_usual_names(tmp_path):
    (tmp_path / "train.conll").write_text("a O\n")
    (tmp_path / "dev.conllu").write_text("1\tb\t_\tO\n")
    task = bert_jax.tasks.tagging(dir=str(tmp_path))
    assert [row.words for row in task.read("train")] == [("a",)]
    assert [row.words for row in task.read("dev")] == [("b",)]
