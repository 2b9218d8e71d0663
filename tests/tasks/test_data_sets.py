"""GLUE's nine tasks and AX from files of their original layout, and from TFDS."""

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow_datasets as tfds

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks.task import write_answers
from bert_jax.tasks.text_classification import Classification, ClassificationConfig

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse "
MNLI += "sentence1_parse sentence2_parse sentence1 sentence2"
LABELS, NOT = f"{MNLI} label1 gold_label", "not_entailment"
PARSES = "7 p1 p2 fiction ((a)) ((b)) (R(a)) (R(b))"
MRPC = "#1_ID #2_ID #1_String #2_String"
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2"
PAIR = "index sentence1 sentence2"
QQP = "id qid1 qid2 question1 question2 is_duplicate"


# The header ("" if a file has none), a row, and its texts and label. Blanks are written as
# tabs, and _ as a blank, except in the word not_entailment.
def pair(header, train, dev, test):
    """The train, dev and test files of a task of pairs: cells, texts and label of a row."""
    return {
        "train.tsv": (f"{header} label", *train),
        "dev.tsv": (f"{header} label", *dev),
        "test.tsv": (header, *test, None),
    }


FILES = {
    "cola": {
        "train.tsv": ("", "gj04 1  They_ran.", "They ran.", None, "1"),
        "dev.tsv": ("", 'gj04 0 * Ran_they_"it.', 'Ran they "it.', None, "0"),
        "test.tsv": ("index sentence", "0 She_ran.", "She ran.", None, None),
    },
    "sst2": {
        "train.tsv": ("sentence label", 'so_"good 1', 'so "good', None, "1"),
        "dev.tsv": ("sentence label", "bad 0", "bad", None, "0"),
        "test.tsv": ("index sentence", "0 fine", "fine", None, None),
    },
    "mrpc": {
        "train.tsv": (f"\ufeffQuality {MRPC}", '1 2 3 a_b "_c', "a b", '" c', "1"),
        "dev.tsv": (f"\ufeffQuality {MRPC}", "0 2 3 d e", "d", "e", "0"),
        "test.tsv": (f"index {MRPC}", "0 2 3 f g", "f", "g", None),
    },
    "stsb": {
        "train.tsv": (f"{STSB} score", "0 n M 2 1 x y a b 3.250", "a", "b", 3.25),
        "dev.tsv": (f"{STSB} score", "0 n M 2 1 x y c d 5.000", "c", "d", 5.0),
        "test.tsv": (STSB, "0 n M 2 1 x y e f", "e", "f", None),
    },
    "qqp": {
        "train.tsv": (QQP, "5 1 2 why? how? 1", "why?", "how?", "1"),
        "dev.tsv": (QQP, "6 1 2 who? what? 0", "who?", "what?", "0"),
        "test.tsv": ("id question1 question2", "0 when? why?", "when?", "why?", None),
    },
    "mnli": {
        "train.tsv": (LABELS, f"{PARSES} a b x entailment", "a", "b", "entailment"),
        "dev_matched.tsv": (LABELS, f"{PARSES} c d x neutral", "c", "d", "neutral"),
        "dev_mismatched.tsv": (LABELS, f"{PARSES} e f x neutral", "e", "f", "neutral"),
        "test_matched.tsv": (MNLI, f"{PARSES} g h", "g", "h", None),
        "test_mismatched.tsv": (MNLI, f"{PARSES} i j", "i", "j", None),
        "../AX/AX.tsv": (PAIR, "7 k l", "k", "l", None),
    },
    "qnli": pair(
        "index question sentence",
        ("0 a? b entailment", "a?", "b", "entailment"),
        ("0 c? d not_entailment", "c?", "d", NOT),
        ("0 how? so", "how?", "so"),
    ),
    "rte": pair(
        PAIR,
        ("0 a b not_entailment", "a", "b", NOT),
        ("0 c d entailment", "c", "d", "entailment"),
        ("0 e f", "e", "f"),
    ),
    "wnli": pair(
        PAIR,
        ("0 a b 1", "a", "b", "1"),
        ("0 c d 0", "c", "d", "0"),
        ("0 e f", "e", "f"),
    ),
}
MAIN = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "spearman"}
SERVER = {"cola": "CoLA", "sst2": "SST-2", "stsb": "STS-B"}


def write_task(task, folder):
    for name, (*lines, _, _, _) in FILES[task].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{line}\n" for line in lines if line).replace(" ", "\t")
        text = text.replace("_", " ") if task in ("cola", "sst2", "mrpc") else text
        (folder / name).write_text(text, encoding="utf-8")
    return Classification(ClassificationConfig(task=task, dir=str(folder)))


@pytest.mark.parametrize("name", FILES)
def test_every_task_reads_its_layout_and_writes_its_submission(name, tmp_path):
    task = write_task(name, tmp_path / "own")
    splits = ["train", *task.splits.scored, *task.splits.predicted]
    rows = [row for split in splits for row in task.read(split)]
    expected = [values for _, _, *values in FILES[name].values()]
    assert [[row.text_a, row.text_b, row.label] for row in rows] == expected
    assert task.main_metric == MAIN.get(name, "accuracy")
    assert sum(label is None for *_, label in expected) == len(task.splits.predicted)
    labels = {label for *_, label in expected if label}
    assert labels <= set(task.labels) or task.regression
    written = {}
    answer = {"value": 5.21} if task.regression else {"label": task.labels[-1]}
    for split in task.splits.predicted:
        paths = write_answers(task, task.read(split), [answer], split, tmp_path / "out")
        written |= {path.name: path.read_text() for path in paths}
    index = "7" if name == "mnli" else "0"
    shown = "5.000" if task.regression else task.labels[-1]
    files = {"mnli": ["MNLI-m", "MNLI-mm", "AX"]}.get(name)
    files = files or [SERVER.get(name, name.upper())]
    text = f"index\tprediction\n{index}\t{shown}\n"
    assert written == {f"{file}.tsv": text for file in files}


def test_mnli_has_two_dev_splits_and_predicts_ax_if_it_is_there(tmp_path):
    task = write_task("mnli", tmp_path / "MNLI")
    assert task.splits.scored == ("dev_matched", "dev_mismatched")
    assert task.splits.predicted == ("test_matched", "test_mismatched", "ax")
    (tmp_path / "diagnostic").mkdir()
    path = tmp_path / "diagnostic" / "diagnostic.tsv"
    (tmp_path / "AX" / "AX.tsv").rename(path)
    assert Classification(task.config).read("ax")[0].text_a == "k"
    path.unlink()
    again = Classification(task.config)
    assert again.splits.predicted == task.splits.predicted[:2]


def test_qqp_skips_rows_that_a_line_end_split(tmp_path, caplog):
    task = write_task("qqp", tmp_path)
    path = tmp_path / "train.tsv"
    path.write_text(path.read_text() + "7\t1\t2\twhy\n\thow?\t0\n8\t1\t2\t\thow?\t0\n")
    with caplog.at_level(logging.WARNING):
        rows = task.read("train")
    assert [(row.text_a, row.text_b) for row in rows] == [
        ("why?", "how?"),
        ("", "how?"),
    ]
    places = [message.partition(": ")[0] for message in caplog.messages]
    assert places == [f"{path}:3", f"{path}:4"]


def test_columns_in_the_settings_take_precedence(tmp_path):
    task = write_task("mrpc", tmp_path)
    settings = dict(text_a="#2 String", text_b="#1 String")
    swapped = Classification(dataclasses.replace(task.config, **settings))
    (row,) = swapped.read("dev")
    assert (row.text_a, row.text_b) == ("e", "d")


def test_rows_of_python_have_the_labels_of_the_data_set():
    task = bert_jax.tasks.glue("rte")
    rows = [{"sentence1": "f", "sentence2": "g", "label": 1}]
    for rows_or_tuples in (rows, [("f", "g", "not_entailment")]):
        task_of_rows = task.with_rows(train=rows_or_tuples, dev=rows_or_tuples)
        (row,) = task_of_rows.read("dev")
        assert (row.text_a, row.text_b, row.label) == ("f", "g", "not_entailment")
        assert task_of_rows.labels == ("entailment", "not_entailment")
    reversed_labels = ("not_entailment", "entailment")  # the order of a head's outputs
    assert bert_jax.tasks.glue("rte", labels=reversed_labels).labels == reversed_labels


def test_a_setting_names_another_file(tmp_path):
    task = write_task("mrpc", tmp_path)
    (tmp_path / "test.tsv").rename(tmp_path / "other.tsv")
    assert task.splits.predicted == ()
    other = Classification(dataclasses.replace(task.config, test="other.tsv"))
    assert other.read("test")[0].text_a == "f"


def test_regression_is_clipped_and_has_three_decimals(tmp_path):
    task = write_task("stsb", tmp_path)
    rows = task.read("test") * 3
    answers = [{"value": value} for value in (-0.2, 2.34567, 5.01)]
    (path,) = write_answers(task, rows, answers, "test", tmp_path / "out")
    assert path.read_text() == "index\tprediction\n0\t0.000\n0\t2.346\n0\t5.000\n"


SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"


@pytest.mark.parametrize(
    "name, labels, main",
    [
        ("sick_entailment", ["NEUTRAL", "ENTAILMENT"], "accuracy"),
        ("sick_relatedness", [4.5, 3.165], "pearson"),
    ],
)
def test_sick_has_its_labels_and_metric(name, labels, main, tmp_path, caplog):
    for file in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        text = SICK + "1\ta\tb\t4.5\tNEUTRAL\n2\tc\td    4.4    NEUTRAL\n"
        text = text if file == "SICK_train" else SICK
        text += "6\te\tf\t3.165\tENTAILMENT\n"
        (tmp_path / f"{file}.txt").write_text(text.replace("\n", "\r\n"))
    task = Classification(ClassificationConfig(task=name, dir=str(tmp_path)))
    assert (task.splits.scored, task.main_metric) == (("dev", "test"), main)
    assert [row.label for row in task.read("train")] == labels
    assert [row.label for row in task.read("test")] == labels[1:]
    assert task.read("dev")[0].id == "6"
    assert "SICK_train.txt:3: row has 3 columns" in caplog.text


class Glue(tfds.core.GeneratorBasedBuilder):
    """A few rows with the features of GLUE's tasks in tensorflow-datasets."""

    VERSION = tfds.core.Version("2.0.0")
    CLASSES = {  # noqa: RUF012
        "mrpc": ["not_equivalent", "equivalent"],
        "mnli": ["entailment", "neutral", "contradiction"],
    }
    BUILDER_CONFIGS = [  # noqa: RUF012 (name and form of the base class)
        tfds.core.BuilderConfig(name=name, version="2.0.0")
        for name in ("mrpc", "mnli", "stsb")
    ]

    def _info(self):
        name = self.builder_config.name
        pair = (
            ("premise", "hypothesis") if name == "mnli" else ("sentence1", "sentence2")
        )
        label = tfds.features.ClassLabel(names=self.CLASSES.get(name, ["x"]))
        features = dict.fromkeys(pair, tfds.features.Text()) | {"idx": np.int32}
        features["label"] = np.float32 if name == "stsb" else label
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        names = ["train", "validation", "test"]
        if self.builder_config.name == "mnli":
            names = ["train", "validation_matched", "validation_mismatched"]
        return {name: self._generate_examples(name) for name in names}

    def _generate_examples(self, split):
        texts = [key for key in self.info.features if key not in ("label", "idx")]
        for i in range(3):
            label = -1 if split == "test" else i % 2
            if self.builder_config.name == "stsb":
                label = 3.2 + i if label >= 0 else -1.0
            row = {key: f"{key} é {i}" for key in texts}
            yield i, {**row, "label": label, "idx": 10 + i}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("tfds")
    for config in Glue.BUILDER_CONFIGS:
        Glue(
            config=config.name, data_dir=data_dir, file_format="array_record"
        ).download_and_prepare()
    return data_dir


@pytest.fixture
def from_tfds(data_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))

    def build(task, name, **settings):
        config = ClassificationConfig(task=task, dir=f"tfds:{name}", **settings)
        return Classification(config)

    return build


def test_tfds_rows_have_glues_labels(from_tfds):
    task = from_tfds("mrpc", "glue/mrpc")
    rows = task.read("train")
    assert sorted((r.text_a, r.text_b, r.label, r.id) for r in rows) == [
        ("sentence1 é 0", "sentence2 é 0", "0", 10),
        ("sentence1 é 1", "sentence2 é 1", "1", 11),
        ("sentence1 é 2", "sentence2 é 2", "0", 12),
    ]
    assert rows[2].where == "tfds:glue/mrpc:train, row 2"
    assert task.splits.predicted == ("test",)
    assert [row.label for row in task.read("test")] == [None] * 3


def test_tfds_reads_mnli_and_regression(from_tfds):
    mnli = from_tfds("mnli", "glue/mnli")
    assert mnli.splits.predicted == ()
    labels = {row.id: row.label for row in mnli.read("dev_mismatched")}
    assert labels == {10: "entailment", 11: "neutral", 12: "entailment"}
    stsb = from_tfds("stsb", "glue/stsb")
    labels = {row.id: row.label for row in stsb.read("dev")}
    assert labels == pytest.approx({10: 3.2, 11: 4.2, 12: 5.2}, rel=1e-6)


def test_any_tfds_dataset_is_read_as_a_table(from_tfds):
    task = from_tfds("table", "glue/mrpc", text_a="sentence2", test="validation[:2]")
    assert task.labels == ("not_equivalent", "equivalent")  # as declared
    assert task.splits.scored == ("dev", "test")
    assert len(task.read("test")) == 2
    with pytest.raises(UserError, match="row 0: no column 'text'; the"):
        from_tfds("table", "glue/mrpc").read("train")
    unlabelled = from_tfds("table", "glue/mrpc", text_a="sentence2")
    assert unlabelled.splits.predicted == ("test",)
    assert [row.label for row in unlabelled.read("test")] == [None] * 3
    named = from_tfds(
        "table",
        "glue/mrpc",
        text_a="sentence2",
        labels=("EQUIVALENT", "NOT_EQUIVALENT"),
    )
    labels = {row.id: row.label for row in named.read("train")}
    assert labels[10] == "NOT_EQUIVALENT" and labels[11] == "EQUIVALENT"
    with pytest.raises(UserError, match=r"tfds:glue/rte:train: .*tfds build"):
        from_tfds("rte", "glue/rte").read("train")


def test_mnli_has_folds(tmp_path):
    task = write_task("mnli", tmp_path / "MNLI")
    (record,) = task.splits.rows["train"][:1]
    task.splits.rows["train"] = [record] * 6
    for fold in task.folds(3):
        assert fold.splits.scored == ("dev",)
        assert (len(fold.read("dev")), len(fold.read("train"))) == (2, 4)
