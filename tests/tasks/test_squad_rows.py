import gzip
import json
import logging

import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks.question_answering import Squad, SquadConfig
from bert_jax.tasks.splits import raw_rows
from bert_jax.tasks.task import objects_of


def read_questions(path, articles="", bad_answers="refuse"):
    settings = dict(train=str(path), train_articles=articles, bad_answers=bad_answers)
    return Squad(SquadConfig(**settings, version_2=True)).read("train")


def entry(name="q1", answers=(("sea", 4),), **more):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "Where?", "answers": answers, **more}


def article(title, *entries, context="the sea of a whale"):
    return {"title": title, "paragraphs": [{"context": context, "qas": list(entries)}]}


def write(tmp_path, *articles):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "2.0", "data": articles}))
    return path


def test_files_of_both_versions_are_read(tmp_path):
    path = write(
        tmp_path,
        article("A", entry(answers=(("sea", 4), ("the sea", 0)))),
        article(
            "B",
            entry("q2", is_impossible=False),
            entry("q3", (), is_impossible=True, plausible_answers=[{"text": "a"}]),
        ),
    )
    first, second, third = read_questions(path)
    assert first.answers == (("sea", 4), ("the sea", 0)) and first.impossible is None
    assert (first.id, first.question) == ("q1", "Where?")
    assert first.context == "the sea of a whale" and first.where.endswith("question q1")
    assert second.impossible is False and second.id == "q2"
    assert third.impossible is True and third.answers == ()


@pytest.mark.parametrize(
    "cell, expected",
    [
        ('["sea", "(the) sea"]', [("sea", 6), ("(the) sea", 0)]),
        ("['sea']", [("sea", 6)]),
        (
            "{'text': array(['sea'], dtype=object), 'answer_start': array([6])}",
            [("sea", 6)],
        ),
        ('[{"text": "sea", "answer_start": 6}]', [("sea", 6)]),
        ("sea", [("sea", 6)]),
        ("(the) sea", [("(the) sea", 0)]),  # an answer is a text of the context
        ("[1]", [("[1]", 10)]),
    ],
)
def test_answers_in_a_cell(cell, expected):
    row = {"question": "[who]", "context": "(the) sea [1]", "answers": cell}
    task = Squad(SquadConfig()).with_rows(train=[row])
    assert [question.answers for question in task.read("train")] == [tuple(expected)]
    with pytest.raises(UserError, match="row 0: column 'answers' starts like a list"):
        Squad(SquadConfig()).with_rows(train=[row | {"answers": "[sea, the]"}])


@pytest.mark.parametrize("version_2", [True, False])
def test_rows_of_a_hub_without_an_answer_have_empty_lists(version_2):
    """squad_v2 of Hugging Face has no is_impossible."""
    texts = {"question": "Where?", "context": "the sea"}
    answers = [{"text": ["sea"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    task = Squad(SquadConfig(version_2=version_2))
    task = task.with_rows(train=[texts | {"answers": answer} for answer in answers])
    if version_2:
        first, second = task.read("train")
        assert first.answers == (("sea", 4),) and first.impossible is False
        assert second.answers == () and second.impossible is True
    else:
        with pytest.raises(UserError, match="has no answer"):
            task.read("train")


@pytest.mark.parametrize(
    ("articles", "titles"),
    [("", "ABCDE"), ("0:3", "ABC"), (":-1", "ABCD"), ("-1:", "E"), ("5:", "")]
    + [(other, None) for other in ("3", "0:6:2", "a:b")],
)
def test_a_slice_selects_articles(tmp_path, articles, titles):
    path = write(tmp_path, *(article(title, entry(title)) for title in "ABCDE"))
    if titles is not None:
        rows = read_questions(path, articles)
        assert "".join(row.id for row in rows) == titles
        return
    with pytest.raises(UserError, match="expected a slice"):
        read_questions(path, articles)


@pytest.mark.parametrize(
    ("bad", "there"),
    [
        (("sea", 5), " at 5, which has 'ea ' there"),
        (("sea", -14), " at -14, which has '' there"),
        (("Sea", 4), " at 4, which has 'sea' there"),
        (("Sea", -1), ""),  # the place of a text that is not found
    ],
)
def test_a_misplaced_answer_is_refused_or_skipped(tmp_path, caplog, bad, there):
    path = write(
        tmp_path,
        article("A", entry("q1", [bad]), entry("q2", [bad, ("sea", 4)]), entry("q3")),
    )
    with pytest.raises(UserError) as error:
        read_questions(path)
    problem = f"{path}: question q1: the answer {bad[0]!r} is not in the context"
    problem += f"{there}; correct it"
    assert str(error.value).startswith(problem)
    assert str(error.value).endswith(" data.bad_answers=skip")
    with caplog.at_level(logging.WARNING):
        rows = read_questions(path, bad_answers="skip")
    assert [row.id for row in rows] == ["q2", "q3"]
    assert {row.answers for row in rows} == {(("sea", 4),)}
    assert caplog.text.count("skipped: ") == 3
    assert f"skipped: {path}: question q1 has no answer" in caplog.text


@pytest.mark.parametrize("form", ["SQuAD's JSON", "JSONL", "rows"])
def test_an_empty_list_of_answers_means_no_answer(form, tmp_path):
    """Annotation tools write no is_impossible. To skip such questions would lose them."""
    rows = [
        {"question": "Where?", "context": "the sea of a whale", "answers": answers}
        for answers in (["sea"], [])
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if form == "rows":
        data = rows
    elif form != "JSONL":
        data = write(tmp_path, article("A", entry(), entry("q2", ())))
    task = Squad(SquadConfig(version_2=True)).with_rows(train=data)
    first, second = task.read("train")
    assert (first.answers, first.impossible) == ((("sea", 4),), None)
    assert (second.answers, second.impossible) == ((), True)
    with pytest.raises(
        UserError, match="has no answer; correct it, set version_2=True"
    ):
        Squad(SquadConfig()).with_rows(train=data).read("train")


def test_is_impossible_may_be_a_number_or_a_cell():
    row = {"question": "Where?", "context": "the sea", "answers": "sea"}
    values = [1, "True", True, 0, "false", "0", 0.0, ""]
    rows = [row | {"is_impossible": value} for value in values]
    task = Squad(SquadConfig(version_2=True)).with_rows(train=rows)
    known = [True] * 3 + [False] * 4 + [None]
    assert [question.impossible for question in task.read("train")] == known


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, r"damaged \(KeyError\('data'\)\); expected SQuAD's JSON"),
        ([], "contains a JSON list; expected SQuAD"),
        ({"data": [article("A", {"question": "a"})]}, "damaged .*'id'"),
        (
            {"data": [article("A", entry(), context=" ")]},
            "question q1: the text is empty",
        ),
        ({"data": [article("A", entry(answers=[("a", "x")]))]}, "answer is damaged"),
        ({"data": [article("A", entry(answers=[(" ", 3)]))]}, "the answer ' ' is not"),
        (
            {"data": [article("A", entry(is_impossible="no"))]},
            "is_impossible. is .*, expected 0 or 1",
        ),
    ],
)
def test_other_files_than_squads_are_refused(tmp_path, document, message):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=message) as error:
        read_questions(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["train-v1.1.json.gz", "train.json.gz"])
def test_a_squad_file_may_be_gzipped_and_is_read_for_prediction(tmp_path, name):
    document = {"data": [article("A", entry(), entry("q2"))]}
    path = tmp_path / name
    path.write_bytes(gzip.compress(json.dumps(document, indent=1).encode()))
    task = Squad(SquadConfig(dir=str(tmp_path)))
    assert [row.id for row in task.read("train")] == ["q1", "q2"]
    # Prediction ignores wrong answers.
    path = write(tmp_path, article("A", entry(answers=[("sea", 9)]), entry("q2")))
    rows = list(objects_of(task, raw_rows(path, task.form)))
    assert [(row.id, row.answers) for row in rows] == [("q1", ()), ("q2", ())]


@pytest.mark.parametrize("version_2", [False, True])
def test_starts_without_texts_are_no_empty_answer(version_2):
    answers = {"answer_start": [4]}
    row = {"question": "Where?", "context": "the sea", "answers": answers}
    task = Squad(SquadConfig(version_2=version_2)).with_rows(train=[row])
    message = r"the answer is damaged \(KeyError\('text'\)\)"
    with pytest.raises(UserError, match=message):
        task.read("train")


def test_a_question_without_an_id_gets_its_number(tmp_path):
    """pandas writes a missing id as None, and CSV as an empty cell."""
    row = {"question": "Who?", "context": "The sea.", "answers": "sea"}
    task = Squad(SquadConfig()).with_rows(
        train=[row], dev=[row | {"id": None}, row, row | {"id": "c"}, row | {"id": ""}]
    )
    assert [question.id for question in task.read("dev")] == ["0", "1", "c", "3"]
    twice = [row | {"id": 7}, row | {"id": "7"}]
    with pytest.raises(UserError, match=r"^dev, row 1: the id '7' occurs twice; expec"):
        Squad(SquadConfig()).with_rows(train=twice, dev=twice).read("dev")


def test_questions_of_tables_and_lines_are_read(parse, tmp_path):
    task, path = Squad(SquadConfig()), tmp_path / "in.jsonl"
    path.write_text(
        '{"question": "Who?", "context": "A whale."}\n'
        '{"question": "Where?", "context": "The\\u2028sea."}\n\n'
    )
    first, second = objects_of(task, raw_rows(path, task.form))
    assert (first.id, first.question, first.context) == ("0", "Who?", "A whale.")
    assert (second.id, second.context) == ("1", "The\u2028sea.")
    assert second.where == f"{path}:2"
    (row,) = parse(task, ["Who?\tA whale.\r\n"])
    assert (row.id, row.question, row.context) == ("0", "Who?", "A whale.")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("Who?\ta\nWho?", "-:2 has 1 value; expected question, context"),
        ("Who?\ta\tb", "-:1 has 3 values; expected question, context"),
        ([{"question": "a"}], "-:1: no column 'context'; the columns are question"),
        ([{"question": "a", "context": 3}], '-:1: "context" is of type int; expected'),
    ],
)
def test_rows_that_are_no_question_are_refused(parse, rows, message):
    rows = rows.splitlines() if isinstance(rows, str) else rows
    with pytest.raises(UserError, match=message):
        parse(Squad(SquadConfig()), rows, "-")


@pytest.mark.parametrize("pair", [("Who?", ""), ("Who?", "  "), ("", "A whale.")])
def test_an_empty_text_to_predict_is_a_question(pair):
    (row,) = objects_of(Squad(SquadConfig()), [("row 0", pair)])
    assert (row.question, row.context) == pair
    labelled = Squad(SquadConfig()).with_rows(train=[(*pair, "whale")])
    with pytest.raises(UserError, match=r"^train, row 0: the text is empty"):
        labelled.read("train")


def test_settings_name_the_columns_of_questions(tmp_path):
    row = {"frage": "Who?", "text": "A whale.", "antwort": "whale", "context": "No."}
    settings = dict(question="frage", context="text", answers="antwort")
    task = Squad(SquadConfig(**settings)).with_rows(train=[row])
    (question,) = task.read("train")
    assert (question.question, question.context) == ("Who?", "A whale.")
    assert question.answers == (("whale", 2),)
    for key in settings:
        wrong = Squad(SquadConfig(**settings | {key: "x"}))
        with pytest.raises(UserError, match="no column 'x'; the columns are frage, t"):
            wrong.with_rows(train=[row])
    path = write(tmp_path, article("A", entry()))
    (question,) = Squad(SquadConfig(**settings)).with_rows(train=path).read("train")
    assert (question.question, question.answers) == ("Where?", (("sea", 4),))


@pytest.mark.parametrize("answers", ["", None, []])
def test_no_answer_of_squad_2_may_be_empty_or_missing(answers):
    row = {"question": "a b", "context": "c d", "answers": answers}
    task = bert_jax.tasks.squad(version_2=True).with_rows(train=[row])
    (question,) = task.read("train")
    assert question.impossible and question.answers == ()
    with pytest.raises(UserError, match="has no answer"):
        bert_jax.tasks.squad().with_rows(train=[row]).read("train")


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"answer": "Anna"}, "no column 'answers'"),
        (
            {"answers": {"text": ["Anna", "sings"], "answer_start": [0]}},
            "2 texts and 1 values of answer_start",
        ),
    ],
)
def test_a_message_names_the_column_of_the_answers(row, shown):
    row = {"question": "Who?", "context": "Anna sings"} | row
    task = bert_jax.tasks.squad(version_2=True).with_rows(train=[row])
    with pytest.raises(UserError, match=shown):
        task.read("train")


@pytest.mark.parametrize("start", [9, "9", 9.0, "9.0", "[9]"])
def test_a_column_has_the_start_of_an_answer_that_occurs_twice(start):
    row = {"question": "where?", "context": "the sea, the sea", "answer": "the sea"}
    task = Squad(SquadConfig(answers="answer"))
    for changes, expected in (({}, 0), ({"answer_start": start}, 9)):
        (question,) = task.with_rows(train=[row | changes]).read("train")
        assert question.answers == (("the sea", expected),)
    own = {"text": ["the sea"], "answer_start": [9]}  # its own place is read
    (question,) = task.with_rows(train=[row | {"answer": own, "answer_start": 0}]).read(
        "train"
    )
    assert question.answers == (("the sea", 9),)
    one = row | {"answers": {"text": "the sea", "answer_start": 9}}
    (question,) = Squad(SquadConfig()).with_rows(train=[one]).read("train")
    assert question.answers == (("the sea", 9),)
