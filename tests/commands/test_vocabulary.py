import json
import types
from pathlib import Path

import pytest

from bert_jax.commands import vocabulary
from bert_jax.data.corpus_formats import PASSAGES, Reading
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.training import text_functions


@pytest.fixture(scope="module")
def text(golden, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "moby.txt"
    lines = (golden / "pretraining_data/moby_dick_sentences.txt").read_text()
    path.write_text("\n".join(lines.split("\n")[:1200]))
    return str(path)


@pytest.mark.parametrize("cased", [False, True])
def test_the_command_writes_a_vocabulary_and_its_case(text, tmp_path, cased, capsys):
    output = tmp_path / "new" / "vocab.txt"
    flags = ["--cased"] if cased else []
    vocabulary.main(
        ["--input", text, "--size", "1000", "--output", str(output), *flags]
    )
    assert "1,000 tokens" in capsys.readouterr().out
    tokenizer = load_tokenizer(output)
    assert tokenizer.vocab_size == 1000
    assert tokenizer.lower_case is not cased
    assert tokenizer.tokenize("the whale") == ["the", "whale"]
    config = json.loads((output.parent / "tokenizer_config.json").read_text())
    assert config["do_lower_case"] is not cased
    assert len(list(output.parent.iterdir())) == 2


def test_the_command_trains_sentencepiece(text, tmp_path, capsys):
    lines = [line for line in Path(text).read_text().split("\n") if line]
    (tmp_path / "text.txt").write_text("\n".join(lines[:300]))
    arguments = ["--input", str(tmp_path / "text.txt"), "--size", "500"]
    flags = [*arguments, "--kind", "sentencepiece"]
    vocabulary.main([*flags, "--output", str(tmp_path / "spiece.model")])
    err = capsys.readouterr().err
    assert "reading 1 file as lines (input_format=auto)" in err
    assert "training a vocabulary on 300 sentences" in err
    assert load_tokenizer(tmp_path).vocab_size == 500


def test_the_command_trains_a_byte_level_bpe(text, tmp_path, capsys):
    flags = ["--input", text, "--size", "400", "--kind", "bpe", "--cased"]
    vocabulary.main([*flags, "--output", str(tmp_path / "tokenizer.json")])
    assert "wrote 400 tokens" in capsys.readouterr().out
    tokenizer = load_tokenizer(tmp_path)
    assert (len(tokenizer), tokenizer.lower_case) == (400, False)
    assert tokenizer.overhead(2) == 4
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["mask_token"] == "<mask>"
    for name, message in (("vocab.json", "another name"), ("bpe.txt", "a .json file")):
        with pytest.raises(UserError, match=message):
            vocabulary.main([*flags, "--output", str(tmp_path / name)])


@pytest.mark.parametrize("flags", [[], ["--extend"], ["--kind", "sentencepiece"]])
def test_text_without_sentences_is_a_one_line_error(tmp_path, flags, golden):
    path, output = tmp_path / "wiki_00", tmp_path / "out" / "vocab.txt"
    path.write_text('<doc title="A">\nA\n</doc>\n')
    if flags == ["--extend"]:
        flags = ["--extend", str(golden / "tokenizer" / "uncased_vocab.txt")]
    elif flags:
        output = output.with_suffix(".model")
    with pytest.raises(UserError, match=r"expected text|frequent new|no sentence"):
        vocabulary.main(["--input", str(path), "--output", str(output), *flags])
    assert not output.parent.exists()


def test_dropped_passages_are_counted_in_the_output(tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("A heading\n\nThe whale is here. The whale swims.\n")
    output = tmp_path / "vocab.txt"
    vocabulary.main(["--input", str(path), "--size", "60", "--output", str(output)])
    assert f"left out: 1 {PASSAGES}\n" in capsys.readouterr().err


def test_the_command_extends_a_vocabulary_by_words(tmp_path, golden):
    old = golden / "tokenizer" / "uncased_vocab.txt"
    path, output = tmp_path / "a.txt", tmp_path / "vocab.txt"
    path.write_text("The zymurgist met zymurgists and a quahogger.\n" * 9)
    flags = ["--input", str(path), "--output", str(output), "--words", "2"]
    vocabulary.main([*flags, "--extend", str(old)])
    tokens = [load_tokenizer(path).tokens for path in (old, output)]
    assert tokens[1][: len(tokens[0])] == tokens[0]
    assert len(tokens[1]) == len(tokens[0]) + 2


def test_only_a_checkpoint_is_offered_for_further_pretraining(
    tmp_path, golden, capsys, monkeypatch
):
    """Neither a vocabulary nor prepared text has parameters to start from."""
    path, output = tmp_path / "a.txt", tmp_path / "new" / "vocab.txt"
    path.write_text("The zymurgist met zymurgists and a quahogger.\n" * 9)
    old = golden / "tokenizer" / "uncased_vocab.txt"
    store = tmp_path / "store"
    text_functions.prepare(path, old, store, workers=1)
    monkeypatch.setenv("HOME", str(Path(__file__).parents[2]))
    english = "~/models/english"
    flags = ["--input", str(path), "--output", str(output), "--words", "2"]
    for start in (str(old), str(store), english):
        vocabulary.main([*flags, "--extend", start])
        err = capsys.readouterr().err
        assert "bert_jax prepare" in err
        assert ("--init_from=" in err) == (start == english)


def test_keep_accents_is_saved(tmp_path):
    path, output = tmp_path / "a.txt", tmp_path / "vocab.txt"
    path.write_text("में मे म।\n" * 9)
    flags = ["--input", str(path), "--size", "60", "--output", str(output)]
    vocabulary.main([*flags, "--keep_accents"])
    assert load_tokenizer(output).tokenize("में मे म") == ["में", "मे", "म"]
    vocabulary.main(flags)
    assert load_tokenizer(output).tokenize("में मे म") == ["म", "म", "म"]


def test_the_command_passes_the_flags_of_its_text(monkeypatch):
    def stop(inputs, reading):
        raise KeyboardInterrupt(inputs, reading)

    monkeypatch.setattr(text_functions, "read_documents", stop)
    line = "--input a b --output vocab.txt --input_format jsonl --text_field body"
    with pytest.raises(KeyboardInterrupt) as end:
        vocabulary.main([*line.split(), "--language", "fr"])
    assert end.value.args == (["a", "b"], Reading("jsonl", "body", "fr"))


@pytest.mark.parametrize(
    "flags",
    [
        "--keep_accents --kind sentencepiece",
        "--keep_accents --cased",
        "--size 9 --extend vocab.txt",
        "--words 9",
    ],
)
def test_a_flag_without_an_effect_is_refused(flags):
    name = flags.split()[0].removeprefix("--")
    message = f"^{name} has no effect with the other arguments"
    with pytest.raises(UserError, match=message):
        vocabulary.main(["--input", "a.txt", "--output", "b.txt", *flags.split()])


def test_the_output_needs_the_kinds_suffix(text, tmp_path):
    output = str(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match=r"expected a \.model file"):
        vocabulary.main(
            ["--input", text, "--kind", "sentencepiece", "--output", output]
        )


def test_an_output_that_is_an_input_is_refused(tmp_path):
    text, path = "The whale is good.\n" * 9, tmp_path / "a.txt"
    path.write_text(text)
    for output, *flags in (
        (path, "--input", path),
        (path, "--input", __file__, "--extend", path),
        (tmp_path / "new" / "vocab.txt", "--input", tmp_path),
    ):
        with pytest.raises(UserError, match=r"is the input .* or inside it; choose"):
            vocabulary.main(list(map(str, [*flags, "--output", output])))
    assert path.read_text() == text


def test_a_checkpoint_that_was_extended_is_trained_next(
    text, golden, tmp_path, monkeypatch, capsys
):
    start = str(golden / "huggingface/pretraining")
    output = str(tmp_path / "vocab.txt")
    tokenizer = types.SimpleNamespace(vocab_size=77)
    monkeypatch.setattr(text_functions, "vocabulary", lambda **_: tokenizer)
    vocabulary.main(["--input", text, "--output", output, "--extend", start])
    prepare, train = capsys.readouterr().err.splitlines()[-2:]
    assert "bert_jax prepare" in prepare
    flags = f"--init_from={start} --data.path=data/text --model.vocab_size=77"
    assert train == f"next: bert_jax train --config further_pretraining {flags}"
