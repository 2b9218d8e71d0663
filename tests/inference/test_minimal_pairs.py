import json
import zipfile

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.inference.minimal_pairs import accuracy, read_sets, summary

PAIRS = [("a good one .", "a bad"), ("it is", "it are here")]
ROWS = [dict(sentence_good=good, sentence_bad=bad, UID=1) for good, bad in PAIRS]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)


def write(folder, name):
    path = folder / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data/b.jsonl", LINES)
            archive.writestr("data/a.jsonl", LINES)
            archive.writestr("README", "no pairs")
        return path
    path.write_text(
        {
            "a.jsonl": LINES,
            "a.csv": "sentence_good,sentence_bad,more\n"
            + "".join(f"{good},{bad},x\n" for good, bad in PAIRS),
            "a.txt": "".join(f"{good}\t{bad}\n" for good, bad in PAIRS),
            "b.txt": "\n\n".join(text for pair in PAIRS for text in pair),
        }[name]
    )
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "b.txt", "all.zip"])
def test_each_form_gives_the_same_pairs(name, tmp_path):
    sets = dict(read_sets([write(tmp_path, name)]))
    assert list(sets) == (["a", "b"] if name == "all.zip" else [name[0]])
    for pairs in sets.values():
        assert pairs == PAIRS


def test_a_folder_is_read_file_by_file_and_fields_may_have_other_names(tmp_path):
    for name in ("y", "x"):
        (tmp_path / f"{name}.jsonl").write_text('{"yes": "a", "no": "b"}\n')
    assert list(read_sets([tmp_path], ("yes", "no"))) == [
        ("x", [("a", "b")]),
        ("y", [("a", "b")]),
    ]


def test_accuracy_is_the_share_of_pairs_whose_good_sentence_scores_higher():
    def score(texts):
        return np.array([-len(text) for text in texts], float)

    sets = [("a", PAIRS), ("b", [("long", "x"), ("x", "y"), ("x", "long"), ("", "y")])]
    right = dict(accuracy(score, sets))
    # The shorter one wins; a tie is wrong.
    assert right["a"].tolist() == [False, True]
    assert right["b"].tolist() == [False, False, True, True]
    found = summary(right)
    assert found.by_set == {"a": 0.5, "b": 0.5}
    assert (found.accuracy, found.pairs) == (0.5, 6)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "one\ntwo\nthree\n", "has 3 lines; expected an even number"),
        ("a.jsonl", '{"sentence_good": "a"}\n', "sentence_bad"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": ""}\n', "a.jsonl:1"),
        ("a.zip", "no zip", "is not a zip file"),
        ("a.pdf", "x", "is no table"),
    ],
)
def test_what_is_no_pair_is_named(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        list(read_sets([path]))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="nothing does not exist; expected pairs"):
        list(read_sets([tmp_path / "nothing"]))
