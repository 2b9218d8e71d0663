"""The workdir of a run, in a bucket of a real server and on a disk."""

import os
import socket

import gcsfs
import pytest
from etils import epath

from bert_jax import progress, remote
from bert_jax.errors import UserError
from bert_jax.remote import local_copy, upload
from bert_jax.runs import read_metrics
from bert_jax.training.metrics import MetricWriter
from bert_jax.training.workdir import RunFolder, open_workdir


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def other_machine(monkeypatch, tmp_path):
    """A function that simulates another machine by a new cache, or returns to the first."""

    def switch(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    return switch


def test_a_run_resumes_on_another_machine(bucket, other_machine):
    folder = RunFolder(bucket)
    folder.fetch()
    write(folder.local / "config.json", "{}")
    writer = MetricWriter(folder.local, 0)
    writer.write(1, "train", {"loss": 2.0})
    writer.sync()
    folder.upload()
    writer.write(2, "train", {"loss": 1.0})
    writer.close()
    folder.upload()
    assert str(folder.checkpoints) == f"{bucket}/checkpoints"
    write(folder.checkpoints / "1/large", "x")

    other_machine("other")
    other = RunFolder(bucket)
    other.fetch()
    assert other.local != folder.local
    assert (other.local / "config.json").read_text() == "{}"
    lines = read_metrics(other.local / "metrics.jsonl")
    assert [line["loss"] for line in lines] == [2.0, 1.0]
    assert list((other.local / "tensorboard").iterdir())
    assert not (other.local / "checkpoints").exists()


def test_a_replaced_folder_is_replaced_in_the_bucket(bucket, other_machine):
    """Files written after the last upload of a machine are not part of the run."""
    folder = RunFolder(bucket)
    folder.fetch()
    write(folder.local / "best/old.txt", "old")
    write(folder.local / "best/same.txt", "same")
    folder.upload()
    unchanged = (epath.Path(bucket) / "best/same.txt").stat()
    (folder.local / "best/old.txt").unlink()
    write(folder.local / "best/new.txt", "new")
    folder.upload()
    write(folder.local / "best/late.txt", "late")
    assert (epath.Path(bucket) / "best/same.txt").stat() == unchanged

    for machine in ("other", "cache"):
        other_machine(machine)
        again = RunFolder(bucket)
        again.fetch()
        assert names(again.local / "best") == ["new.txt", "same.txt"]
    assert (folder.local / "best/new.txt").read_text() == "new"


def test_a_model_of_a_run_is_loaded_while_the_run_continues(bucket):
    """On the machine of process 0. The loaded copy is in its own folder."""
    folder = RunFolder(bucket)
    folder.fetch()
    for name in ("config.json", "tensorboard/events", "best/model"):
        write(folder.local / name, "1")
    folder.upload()
    copy = local_copy(bucket, model=True)
    assert copy != folder.local
    write(folder.local / "config.json", "22")
    folder.upload()
    assert names(epath.Path(bucket)) == ["best", "config.json", "tensorboard"]
    assert names(epath.Path(bucket) / "tensorboard") == ["events"]
    assert names(folder.local) == ["best", "config.json", "tensorboard"]


def test_a_folder_is_prepared_once(bucket, other_machine):
    def make(directory):
        made.append(directory)
        write(directory / "shards/0", "tokens")
        write(directory / "index.json", "{}")

    made = []
    for machine in ("one", "one", "two"):
        other_machine(machine)
        copy = RunFolder(bucket).prepared("text", "index.json", make)
        assert (copy / "shards/0").read_text() == "tokens"
    assert len(made) == 1


def test_the_deadline_pauses_while_text_is_prepared_and_uploaded(bucket, monkeypatch):
    """Vocabulary training reports no progress. An upload reports once for each file."""

    def make(directory):
        waits.append(progress._waits)
        write(directory / "index.json", "{}")

    def counted_upload(*arguments):
        waits.append(progress._waits)
        upload(*arguments)

    waits = []
    monkeypatch.setattr(remote, "upload", counted_upload)
    RunFolder(bucket).prepared("text", "index.json", make)
    assert waits == [1, 1] and progress._waits == 0


def test_an_upload_makes_progress_with_each_file(bucket, monkeypatch):
    folder, made = RunFolder(bucket), []
    folder.fetch()
    for number in range(5):
        write(folder.local / f"best/{number}", "1")
    monkeypatch.setattr(progress, "made_progress", lambda: made.append(1))
    folder.upload()
    assert len(made) == 5


def test_results_are_uploaded_last(bucket, monkeypatch):
    """A run with results.json counts as finished, so the workdir's file is the last."""
    folder, uploaded = RunFolder(bucket), []
    folder.fetch()
    for name in ("vocab.txt", "results.json", "best/model", "config.json"):
        write(folder.local / name, "1")
        write(folder.local / "sweep/a" / name, "1")
    monkeypatch.setattr(remote, "upload", lambda *args: uploaded.extend(args[2]))
    folder.upload()
    assert len(uploaded) == 8
    last = uploaded[-2:]
    assert last == ["sweep/a/results.json", "results.json"]


def test_a_second_run_on_one_machine_is_refused(bucket):
    """Both runs would write their small files into one cache folder."""
    first = RunFolder(bucket)
    with first.held():
        first.fetch()
        write(first.local / "best/model", "old")
        second = RunFolder(bucket)
        message = (
            f"{bucket} is in use by process {os.getpid()} on {socket.gethostname()}"
        )
        with pytest.raises(UserError, match=message), second.held():
            pass
        first.upload()  # the first run is still the owner
    assert (epath.Path(bucket) / "best/model").read_text() == "old"
    with second.held():
        second.fetch()


def test_a_local_workdir_is_used_without_copies(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.fetch()
    folder.upload()
    assert folder.local == tmp_path / "run"
    assert folder.checkpoints == tmp_path / "run" / "checkpoints"
    assert list(folder.local.iterdir()) == []


def test_the_newest_run_owns_a_workdir_in_a_bucket(bucket, other_machine):
    """An older run, for example a stalled one, does not overwrite its files."""
    first = RunFolder(bucket)
    with first.held():
        first.fetch()
        write(first.local / "a.txt", "1")
        first.upload()
        assert names(epath.Path(bucket)) == [".lock", "a.txt"]
        other_machine("other")
        second = RunFolder(bucket)
        with second.held():
            second.fetch()
            write(second.local / "a.txt", "22")
            second.upload()
            write(first.local / "a.txt", "333")
            owner = (
                rf"belongs to process {os.getpid()} on {socket.gethostname()}, .* this"
            )
            with pytest.raises(UserError, match=rf"{owner} run stops without a save"):
                first.upload()
    assert (epath.Path(bucket) / "a.txt").read_text() == "22"


def test_a_deleted_owner_file_stops_the_run_with_one_line(bucket):
    folder = RunFolder(bucket)
    with folder.held():
        folder.fetch()
        (epath.Path(bucket) / ".lock").unlink()
        with pytest.raises(UserError, match=rf"^{bucket} now belongs to another proc"):
            folder.upload()


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_each_small_file_is_uploaded_in_one_request(bucket, monkeypatch):
    """An upload of several requests fails if the last answer is lost."""
    monkeypatch.setattr(gcsfs.core, "initiate_upload", None)
    folder = RunFolder(bucket)
    with folder.held():
        folder.fetch()
        write(folder.local / "best/model", "x" * (6 << 20))
        folder.upload()
    assert (epath.Path(bucket) / "best/model").stat().length == 6 << 20


def test_checkpoints_behind_a_link_are_deleted_and_the_link_stays(tmp_path):
    disk = tmp_path / "disk"
    (disk / "3/state").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to(disk)
    RunFolder(tmp_path / "run").delete_checkpoints()
    assert list(disk.iterdir()) == []
    assert (tmp_path / "run/checkpoints").is_symlink()
    (tmp_path / "run/checkpoints").unlink()
    RunFolder(tmp_path / "run").delete_checkpoints()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "checkpoints/notes/a.txt",
            "predictions/a.tsv",
            "metrics.jsonl",
            "curves.png",
        ),
        *("best/mine.bin", "config.json"),
    ],
)
def test_files_of_the_user_are_not_replaced_by_a_run(bucket, tmp_path, name):
    """A fine-tuning deletes checkpoints/ at its end, and replaces the others."""
    message = f"{name.split('/')[0]} is not of a run, and a run may replace it"
    for place in (epath.Path(tmp_path), epath.Path(bucket)):
        write(place / "train.csv", "text,label\n")
        write(place / name, '{"mine": 1}')
        with pytest.raises(UserError, match=message), open_workdir(place, [].append):
            pass
        assert (place / name).read_text() == '{"mine": 1}'
        write(place / "config.json", '{"phases": []}')
        with open_workdir(place, [].append):
            pass
