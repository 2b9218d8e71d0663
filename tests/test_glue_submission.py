"""The command that packs a GLUE submission."""

import zipfile

import pytest

from bert_jax.errors import UserError
from bert_jax.glue_submission import main


def test_it_packs_what_runs_left_and_names_the_rest(tmp_path, capsys):
    for folder, name in (("cola", "CoLA"), ("mrpc", "MRPC"), ("rte/sweep/a", "RTE")):
        path = tmp_path / "runs" / folder / "predictions" / f"{name}.tsv"
        path.parent.mkdir(parents=True)
        path.write_text("index\tprediction\n0\t1\n")
    out = tmp_path / "out" / "submission.zip"
    main(["--input", str(tmp_path / "runs"), "--output", str(out)])
    assert sorted(zipfile.ZipFile(out).namelist()) == ["CoLA.tsv", "MRPC.tsv"]
    assert "not found: " in capsys.readouterr().out
    # A single run of a sweep is not what is submitted.
    assert [p.name for p in out.parent.iterdir()] == ["submission.zip"]


def test_nothing_to_pack_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no predictions"):
        main(["--input", str(tmp_path), "--output", str(tmp_path / "x.zip")])
