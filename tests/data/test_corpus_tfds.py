"""Reads files that tensorflow-datasets wrote in its ArrayRecord format."""

import itertools
import sys

import pytest
import tensorflow_datasets as tfds

from bert_jax.data.corpus import (
    find_sources,
    fingerprint,
    read_documents,
    read_source,
)
from bert_jax.data.corpus_formats import Reading
from bert_jax.errors import UserError

ROWS = 40


class TinyWiki(tfds.core.GeneratorBasedBuilder):
    """Texts in the format of wiki40b, written without TensorFlow."""

    VERSION = tfds.core.Version("1.3.0")
    BUILDER_CONFIGS = [  # noqa: RUF012 (name and form of the base class)
        tfds.core.BuilderConfig(name="en", version="1.3.0")
    ]

    def _info(self):
        text = tfds.features.Text()
        features = tfds.features.FeaturesDict({"text": text, "comment": text})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(ROWS),
            "test": self._generate_examples(3),
        }

    def _generate_examples(self, rows):
        comment = "Heading\n\nA comment. It is short.\n\nSee also"
        for i in range(rows):
            text = (
                f"\n_START_ARTICLE_\nTitle {i}\n_START_SECTION_\nHistory\n"
                f"_START_PARAGRAPH_\nArticle {i} begins. It is é._NEWLINE_It ends.\n"
            )
            yield i, {"text": text, "comment": comment}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("tfds")
    wiki = TinyWiki(config="en", data_dir=data_dir, file_format="array_record")
    wiki.download_and_prepare()
    return data_dir


@pytest.fixture(autouse=True)
def environment(data_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # reading does not need it


def test_every_article_is_read_without_titles():
    documents = list(read_documents(["tfds:tiny_wiki/en"]))
    expected = [[f"Article {i} begins.", "It is é.", "It ends."] for i in range(ROWS)]
    assert sorted(documents) == sorted(expected)


def test_splits_and_fields_are_selected():
    assert len(list(read_documents(["tfds:tiny_wiki/en:test"]))) == 3
    assert len(list(read_documents(["tfds:tiny_wiki/en:train[:25%]"]))) == ROWS // 4
    reading = Reading(text_field="comment")
    rows = list(read_documents(["tfds:tiny_wiki"], reading))
    assert {tuple(row) for row in rows} == {("A comment.", "It is short.")}


def test_each_split_has_its_own_fingerprint():
    names = ["tiny_wiki/en:train", "tiny_wiki/en:test", "tiny_wiki/en:train[:3]"]
    sources = find_sources([f"tfds:{name}" for name in names], Reading())
    assert len({*map(fingerprint, sources)}) == 3


def test_ranges_contain_every_row_once():
    (source,) = find_sources(["tfds:tiny_wiki/en"], Reading())
    all_rows = list(read_source(source, 0, source.size, Reading()))
    assert [at for at, _ in all_rows] == [i * source.size // ROWS for i in range(ROWS)]
    for parts in (2, 3, 7, 50):
        bounds = [source.size * i // parts for i in range(parts + 1)]
        rows = [
            document
            for start, stop in itertools.pairwise(bounds)
            for document in read_source(source, start, stop, Reading())
        ]
        assert rows == all_rows


@pytest.mark.parametrize(
    "name, message",
    [
        ("wiki40b/en", "tfds build wiki40b/en --file_format=array_record"),
        ("tiny_wiki/en:dev", "tiny_wiki/en:dev has no such split; it has train, test"),
    ],
)
def test_the_error_names_the_missing_part(name, message):
    with pytest.raises(UserError) as error:
        list(read_documents([f"tfds:{name}"]))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
