"""experiments/data/download.py, with addresses of files in place of a network."""

import hashlib
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "experiments/data"


@pytest.fixture
def program():
    """experiments/data/download.py."""
    path = FOLDER / "download.py"
    spec = importlib.util.spec_from_file_location("download", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path):
    """A source of two files in another folder."""
    files = {}
    for path, content in {
        "A/a b's.md": b"one\r\ntwo",
        "B/c: é%20.md": b"three",
    }.items():
        place = tmp_path / "remote" / path
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        files[path[2:].replace(" ", "_")] = {"path": path, "sha256": digest}
    return {"url": (tmp_path / "remote").as_uri(), "files": files}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_missing_files_are_downloaded_and_existing_files_are_kept(
    program, source, tmp_path
):
    folder = tmp_path / "data/books"
    program.complete(folder, source)
    complete = contents(folder)
    assert complete == {"a_b's.md": b"one\r\ntwo", "c:_é%20.md": b"three"}
    (folder / "a_b's.md").unlink()
    (folder / ".hidden").write_text("x")
    shutil.rmtree(tmp_path / "remote/B")
    program.complete(folder, source)
    assert contents(folder) == complete | {".hidden": b"x"}
    shutil.rmtree(tmp_path / "remote")  # complete folders need no network
    program.complete(folder, source)


def test_wrong_files_end_the_program(program, source, tmp_path):
    folder = tmp_path / "data"
    (tmp_path / "remote/B/c: é%20.md").write_bytes(b"threE")
    digest = hashlib.sha256(b"threE").hexdigest()
    with pytest.raises(SystemExit, match=rf"^file:.*SHA-256 {digest}, expected "):
        program.complete(folder, source)
    assert list(contents(folder)) == ["a_b's.md"]
    (folder / "a_b's.md").write_bytes(b"one\ntwo")
    with pytest.raises(SystemExit, match=rf"^{folder}/a_b's.md has the SHA-256 "):
        program.complete(folder, source)
    (folder / "more.md").write_text("four")
    with pytest.raises(SystemExit, match=r"more\.md is not a file of this text; move"):
        program.complete(folder, source)


def test_a_failed_download_names_the_address_and_what_to_do(program, source, tmp_path):
    shutil.rmtree(tmp_path / "remote")
    message = r"^cannot download file://.*A/a%20b%27s.md: .*, or copy .*/data from "
    with pytest.raises(SystemExit, match=message):
        program.complete(tmp_path / "data", source)


def test_the_list_names_a_commit_and_a_checksum_of_each_file(
    program, monkeypatch, tmp_path, capsys
):
    sources = json.loads((FOLDER / "files.json").read_text())
    counts = {name: len(source["files"]) for name, source in sources.items()}
    assert counts == {"wikipedia": 30, "books": 34, "blimp/data": 67}
    for source in sources.values():
        assert re.fullmatch(r"https://raw\.\S+/[0-9a-f]{40}", source["url"])
        digests = {file["sha256"] for file in source["files"].values()}
        assert len(digests) == len(source["files"])
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    calls = []
    monkeypatch.setattr(program, "complete", lambda *call: calls.append(call))
    monkeypatch.setattr("sys.argv", ["download.py", str(tmp_path)])
    program.main()
    assert calls == [(tmp_path / name, source) for name, source in sources.items()]
    lines = capsys.readouterr().out.splitlines()
    for line, terms in zip(
        lines, ("CC BY-SA 3.0", "public domain", "CC BY 4.0"), strict=True
    ):
        assert terms in line
