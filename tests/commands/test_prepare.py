import sys
import types
from collections import Counter
from pathlib import Path

import pytest

from bert_jax.commands import prepare
from bert_jax.commands.cli import run
from bert_jax.data import preparation
from bert_jax.data.preparation import Report
from bert_jax.data.store import StoreInfo, TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.training import text_functions

VOCABULARY = str(Path(__file__).parent.parent / "golden/tokenizer/uncased_vocab.txt")


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["prepare", *map(str, arguments)])
    monkeypatch.setattr("os._exit", sys.exit)  # ends an interrupted command
    with pytest.raises(SystemExit) as end:
        run(prepare.main)
    return end.value.code


def test_the_command_prepares_text_and_prints_a_summary(tmp_path, monkeypatch, capsys):
    text, store = tmp_path / "text.txt", tmp_path / "s"
    text.write_text("One sentence here.\nAnother one.\n\nA second document.\n")
    arguments = ("--input", text, "--vocabulary", VOCABULARY, "--output", store)
    assert command(monkeypatch, *arguments) == 0
    out = capsys.readouterr().out
    assert "2 documents, 3 sentences, 11 tokens" in out
    assert "0.00% unknown tokens; left out: 0 headings" in out
    assert TokenStore(store).info.settings["inputs"] == [str(text)]
    assert command(monkeypatch, *arguments) == 0
    assert "was already prepared" in capsys.readouterr().out


def test_text_without_document_boundaries_gives_a_warning(
    tmp_path, monkeypatch, capsys
):
    """By English rules, German lines with abbreviations have several sentences."""
    text, line = tmp_path / "text.txt", "Er kam bzw. ging am 3. Mai.\n"
    text.write_text(f"{2 * line}\n{3 * line}")
    flags = ("--input", text, "--vocabulary", VOCABULARY, "--output")
    assert command(monkeypatch, *flags, tmp_path / "en") == 0
    out, err = capsys.readouterr()
    assert "1 document, " in out
    assert "one document, but evaluation and next sentence prediction need seve" in err
    assert "input_format=lines; if the text is not English, set language" in err
    assert command(monkeypatch, *flags, tmp_path / "de", "--language", "de") == 0
    out, err = capsys.readouterr()
    assert TokenStore(tmp_path / "de").info.settings["language"] == "de"
    assert "2 documents, 5 sentences" in out
    assert "no boundaries" not in err


@pytest.mark.parametrize("beam", [False, True])
def test_the_command_passes_every_flag(tmp_path, monkeypatch, beam):
    report = Report(StoreInfo(1, 1, 1, "<u2", 9, "", [], {}), Counter())
    calls = []

    def record(inputs, tokenizer, output, *options, **settings):
        calls.append((inputs, tokenizer.vocab_size, str(output), *options, settings))
        return report

    monkeypatch.setattr(text_functions, "prepare_with_beam", record)
    monkeypatch.setattr(preparation, "prepare", record)
    flags = {"workers": 3, "shards": 5, "text_field": "body", "language": "fr"}
    flags |= {"segmenter": "module:function", "format": "jsonl"}
    line = ["--input", "a", "b", "--vocabulary", VOCABULARY, "--output", "store"]
    for name, value in flags.items():
        line.append(f"--{name.replace('format', 'input_format')}={value}")
    options = []
    if beam:
        line.append("--beam=--runner=Some --name='a b'")
        options = [["--runner=Some", "--name=a b"]]
    prepare.main(line)
    size = load_tokenizer(VOCABULARY).vocab_size
    assert calls == [(["a", "b"], size, "store", *options, flags)]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"--input": "no.txt"}, "no.txt does not exist; expected the path"),
        ({"--vocabulary": "no.txt"}, "no.txt"),
        ({"--language": "English"}, "language='English', expected a code such as en"),
        ({"--output": "other.txt"}, "File exists (other.txt)"),
        ({"--output": "other.txt/a/b"}, "Not a directory (other.txt/a"),
        ({"--output": "text.txt"}, "text.txt is the input text.txt or inside it"),
    ],
)
def test_mistakes_are_one_line_errors(tmp_path, monkeypatch, capsys, changed, message):
    monkeypatch.chdir(tmp_path)
    for name in ("text.txt", "other.txt"):
        Path(name).write_text("One sentence here.\n")
    flags = {"--input": "text.txt", "--vocabulary": VOCABULARY, "--output": "store"}
    flags |= changed
    assert command(monkeypatch, *(x for pair in flags.items() for x in pair)) == 2
    errors = capsys.readouterr().err
    assert errors.splitlines()[-1].startswith("error: ")
    assert message in errors
    assert not Path("store").exists()


def test_the_next_command_starts_from_the_checkpoint_of_the_vocabulary(
    golden, monkeypatch, capsys
):
    start = str(golden / "huggingface/pretraining")
    info = types.SimpleNamespace(vocab_size=77)
    report = types.SimpleNamespace(info=info)
    monkeypatch.setattr(text_functions, "prepare", lambda **_: report)
    line = ["--input", "a", "--output", "store", "--vocabulary"]
    prepare.main([*line, start])
    prepare.main([*line, VOCABULARY])
    further, new = capsys.readouterr().err.splitlines()
    assert further == (
        "next: bert_jax train --config further_pretraining "
        f"--init_from={start} --data.path=store"
    )
    assert new.endswith("--config mini --data.path=store --model.vocab_size=77")
