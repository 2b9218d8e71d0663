import dataclasses
import errno
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from bert_jax import progress
from bert_jax.errors import UserError
from bert_jax.interop import train_state
from bert_jax.interop.train_state import CheckpointStore, read_step
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.parallel.sharding import arrays_by_path
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer
from bert_jax.training.state import abstract_state, init_state

OPTIMIZER = bert_optimizer(OptimizerConfig(1e-3))


@pytest.fixture(scope="module")
def objective(small_model_config):
    return MlmNsp(BertForPreTraining(small_model_config))


@pytest.fixture
def state(objective):
    abstract = abstract_state(objective, OPTIMIZER, make_mesh(MeshConfig()))
    return init_state(objective, OPTIMIZER, abstract, seed=1)


def test_a_save_survives_the_donation_of_its_buffers(objective, state, tmp_path):
    """The save runs in the background while the next updates overwrite the arrays."""
    shift = jax.jit(
        lambda params: jax.tree.map(lambda x: x + 1, params), donate_argnums=0
    )
    before = jax.device_get(state.params)
    with CheckpointStore(tmp_path, keep=2) as store:
        for step in (1, 2, 3):
            store.save(step, state.replace(step=state.step + step), {"seed": 1})
            state = state.replace(params=shift(state.params))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3"]

    # A process killed before it deletes the oldest checkpoint leaves one too many.
    shutil.copytree(tmp_path / "2", tmp_path / "1")
    # On another mesh the layout of the arrays changes, but not their values.
    mesh = make_mesh(MeshConfig(data=2, model=2, replica=2))
    abstract = abstract_state(objective, OPTIMIZER, mesh)
    with CheckpointStore(tmp_path, keep=2) as store:
        lines = []
        restored, notes = store.restore(abstract, lines.append)
        assert not lines
        assert notes == {"seed": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3"]
    assert restored.step == 3
    assert jax.random.key_data(restored.key).tolist() == (
        jax.random.key_data(state.key).tolist()
    )
    for old, new in zip(
        jax.tree.leaves(before), jax.tree.leaves(restored.params), strict=True
    ):
        assert np.array_equal(old + np.float32(1) + np.float32(1), new)
    specs = {leaf.sharding.mesh.shape["model"] for leaf in jax.tree.leaves(restored)}
    assert specs == {2}


def test_an_error_of_the_run_deletes_no_checkpoint(state, tmp_path):
    """The run may have diverged because of the parameters of the newest checkpoint."""
    with (
        pytest.raises(UserError, match="diverged"),
        CheckpointStore(tmp_path, keep=1) as store,
    ):
        for step in (1, 2, 3):
            store.save(step, state, {})
        store.wait()
        assert store.steps() == [3, 2]
        raise UserError("diverged")
    with pytest.raises(UserError), CheckpointStore(tmp_path, keep=1) as store:
        store.restore(state, print)
        raise UserError("diverged again")
    assert store.steps() == [3, 2]
    with CheckpointStore(tmp_path, keep=1) as store:
        store.restore(state, print)
    assert store.steps() == [3]


def test_the_newest_checkpoints_and_multiples_of_steps_are_kept(saved, tmp_path):
    """A folder that a killed deletion left incomplete is deleted as well."""
    source, state = saved
    shutil.copytree(source, tmp_path / "run")
    (tmp_path / "run/1/_CHECKPOINT_METADATA").unlink()
    shutil.rmtree(tmp_path / "run/1/state")
    with CheckpointStore(tmp_path / "run", keep=1, keep_every=4) as store:
        for step in (4, 6, 8, 9, 11):
            store.save(step, state, {})
            store.wait()
        assert store.steps() == [11, 9, 8, 4]
    assert store.steps() == [11, 8, 4]
    # The batch of step 12 was skipped, so step 13 was saved in its place.
    with CheckpointStore(tmp_path / "run", 1, keep_every=4, save_every=7) as store:
        for step in (13, 14, 15):
            store.save(step, state, {})
    assert store.steps() == [15, 13, 8, 4]
    with CheckpointStore(tmp_path / "run", keep=2) as store:
        pass
    assert store.steps() == [15, 13]


def test_checkpoints_of_a_run_that_kept_no_multiples_stand_for_none(saved, tmp_path):
    """The run resumes with keep_checkpoints_every, or with a lower one."""
    source, _ = saved
    for step in (28, 32, 36, 40, 44):
        shutil.copytree(source / "1", tmp_path / f"run/{step}")
    with CheckpointStore(tmp_path / "run", 1, keep_every=10, save_every=4) as store:
        pass
    assert store.steps() == [44, 40]


def test_a_checkpoint_of_another_model_is_a_one_line_error(
    state, small_model_config, tmp_path
):
    with CheckpointStore(tmp_path, keep=1) as store:
        store.save(1, state, {})
    config = dataclasses.replace(small_model_config, intermediate_size=48)
    wider = MlmNsp(BertForPreTraining(config))
    abstract = abstract_state(wider, OPTIMIZER, make_mesh(MeshConfig()))
    with (
        CheckpointStore(tmp_path, keep=1) as store,
        pytest.raises(
            UserError,
            match=r"config: params/.*kernel is \(40, 16\), expected \(48, 16\); use the",
        ),
    ):
        store.restore(abstract, print)
    muon = bert_optimizer(OptimizerConfig(1e-3, name="muon"))
    narrow = MlmNsp(BertForPreTraining(small_model_config))
    abstract = abstract_state(narrow, muon, make_mesh(MeshConfig()))
    with (
        CheckpointStore(tmp_path, keep=1) as store,
        pytest.raises(
            UserError, match=r"config: opt_state/.* the optimizer and compute"
        ),
    ):
        store.restore(abstract, print)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two checkpoints of four small arrays, and the second state."""
    folder = tmp_path_factory.mktemp("saved")
    random = np.random.default_rng(0)
    params = {
        "a": random.normal(size=(60, 50)).astype(np.float32),
        "b": random.normal(size=(40,)).astype(np.float32),
    }
    make = jax.jit(lambda step: {"params": params, "step": step, "sum": step * 0.5})
    with CheckpointStore(folder, keep=2) as store:
        for step in (1, 2):
            store.save(step, make(np.int32(step)), {"progress": {"seconds": step / 3}})
    return folder, make(np.int32(2))


def restored(folder, state):
    """The restored checkpoint of a run, and the printed lines."""
    lines = []
    with CheckpointStore(folder, keep=2) as store:
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        found = store.restore(abstract, lines.append)
    return found, lines


def test_a_damaged_file_never_changes_the_restored_state(saved, kills, tmp_path):
    """A flipped bit, a cut or a lost file of the newest checkpoint.

    Either the run notices the damage and restores the checkpoint before it, or the
    damage changes nothing that is read.
    """
    source, state = saved
    random = np.random.default_rng(1)
    names = sorted(p.relative_to(source) for p in (source / "2").rglob("*"))
    names = [name for name in names if (source / name).is_file()]
    noticed = []
    for number in range(kills or 3 * len(names)):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        path = folder / names[number % len(names)]
        content = bytearray(path.read_bytes())
        kind = number // len(names) % 3
        if kind == 0 and content:
            place = random.integers(len(content))
            content[place] ^= 1 << random.integers(8)
            path.write_bytes(content)
        elif kind == 1:
            path.write_bytes(content[: random.integers(max(len(content), 1))])
        else:
            path.unlink()
        (restored_state, notes), lines = restored(folder, state)
        step = int(restored_state["step"])
        assert notes == {"progress": {"seconds": step / 3}}
        assert np.array_equal(restored_state["params"]["a"], state["params"]["a"])
        assert np.array_equal(restored_state["params"]["b"], state["params"]["b"])
        assert restored_state["sum"] == step * 0.5
        noticed.append(step == 1)
        assert len(lines) == noticed[-1]
        if lines:
            assert lines[0].startswith(f"{folder}/2 is damaged: ")
            assert lines[0].endswith("; using checkpoint 1")
            assert "\n" not in lines[0]
            assert (folder / "2.damaged").is_dir() and not (folder / "2").exists()
        shutil.rmtree(folder)
    print(
        f"{sum(noticed)} of {len(noticed)} noticed, the other damages changed nothing"
    )
    assert sum(noticed) > len(noticed) / 2


def test_parameters_are_read_from_the_last_complete_checkpoint(saved, tmp_path, caplog):
    source, state = saved
    shutil.copytree(source, tmp_path / "run")
    data = max((tmp_path / "run" / "2").rglob("*"), key=lambda p: p.stat().st_size)
    data.write_bytes(bytes(data.stat().st_size))
    _, params = read_step(tmp_path / "run")
    assert jax.tree.all(jax.tree.map(np.array_equal, params, state["params"]))
    (record,) = caplog.records
    assert "run/2 is damaged: " in record.message
    shutil.rmtree(tmp_path / "run" / "1")
    with pytest.raises(
        UserError, match=r"run/2 is damaged.*all 1 checkpoints are damaged"
    ):
        read_step(tmp_path / "run")
    (tmp_path / "run" / "9999").mkdir()
    with pytest.raises(
        UserError, match=r"run/2 is damaged.*all 1 checkpoints are damaged"
    ):
        restored(tmp_path / "run", state)


def test_files_of_another_save_and_changed_notes_are_detected(saved, tmp_path):
    """A copy may mix two saves: each file is intact, but the arrays do not match."""
    source, state = saved
    shutil.copytree(source, tmp_path / "mixed")
    shutil.rmtree(tmp_path / "mixed/2/state")
    shutil.copytree(source / "1/state", tmp_path / "mixed/2/state")
    shutil.copytree(source, tmp_path / "noted")
    path = tmp_path / "noted/2/_CHECKPOINT_METADATA"
    path.write_text(path.read_text().replace("0.66666", "0.76666"))
    for name, reason in (("mixed", "the checksum of "), ("noted", "its notes differs")):
        (restored_state, notes), (line,) = restored(tmp_path / name, state)
        assert int(restored_state["step"]) == 1
        assert notes == {"progress": {"seconds": 1 / 3}}
        assert f"{name}/2 is damaged: the checksum of" in line and reason in line
    for number in range(2):
        params = {"kernel": np.full((4, 4), number, np.float32)}
        with CheckpointStore(tmp_path / str(number), keep=1) as store:
            store.save(0, {"params": params}, {})
    shutil.rmtree(tmp_path / "0/0/state")
    shutil.copytree(tmp_path / "1/0/state", tmp_path / "0/0/state")
    with pytest.raises(UserError, match="the checksum of params/kernel differs"):
        read_step(tmp_path / "0")


class WrappedError(KeyError):
    """Orbax's NoEntryError is of this type, with the cause in __cause__."""


@pytest.mark.parametrize(
    "fault",
    [
        TimeoutError("timed out"),
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes"),
        ValueError('Error opening "zarr3" driver: UNAVAILABLE: HTTP 503'),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_error_of_the_machine_is_not_taken_for_damage(
    saved, tmp_path, monkeypatch, fault, wrapped
):
    """Both checkpoints keep their names and can be restored afterwards."""
    source, state = saved
    shutil.copytree(source, tmp_path / "run")

    def load(*args, **kwargs):
        if wrapped:
            raise WrappedError("incompatible handler") from fault
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(train_state.ocp, "load_checkpointables", load)
        with pytest.raises(WrappedError if wrapped else type(fault)):
            restored(tmp_path / "run", state)
        with pytest.raises(WrappedError if wrapped else type(fault)):
            read_step(tmp_path / "run")
    checkpoint, lines = restored(tmp_path / "run", state)
    assert int(checkpoint[0]["step"]) == 2 and not lines


def test_the_deadline_pauses_while_a_checkpoint_is_loaded(saved, monkeypatch):
    source, state = saved
    waits, load = [], train_state.ocp.load_checkpointables

    def counted_load(*args, **kwargs):
        waits.append(progress._waits)
        return load(*args, **kwargs)

    monkeypatch.setattr(train_state.ocp, "load_checkpointables", counted_load)
    restored(source, state)
    read_step(source)
    assert waits == [1, 1] and progress._waits == 0


SAVE = """
import resource, signal, sys
import jax
jax.config.update("jax_platforms", "cpu")
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from bert_jax.commands import cli
from bert_jax.interop.train_state import CheckpointStore

def main(argv):
    number, port, folder = int(argv[0]), argv[1], argv[2]
    cli.start(cli.JOB_FLAGS | dict(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2, process_id=number,
        heartbeat_timeout=3,
    ))
    rows = np.random.default_rng(0).normal(size=(1024, 64)).astype(np.float32)
    places = NamedSharding(Mesh(np.array(jax.devices()), "data"), PartitionSpec("data"))
    array = jax.make_array_from_callback(rows.shape, places, rows.__getitem__)
    with CheckpointStore(folder, keep=2) as store:
        store.save(1, {"params": array}, {})
        store.save(2, {"params": array}, {})
        store.wait()
        if number == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))
        store.save(3, {"params": array}, {})
        store.save(4, {"params": array}, {})

cli.run(main)
"""


def test_a_failed_save_in_one_process_ends_all_processes(port, tmp_path):
    """The process prints one line and exits with 2. JAX ends the other process."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", SAVE, str(number), str(port), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    (_, healthy), (_, full) = (job.communicate() for job in jobs)
    assert jobs[1].returncode == 2, full
    assert jobs[0].returncode in (75, -signal.SIGABRT), healthy
    line = full.splitlines()[-1]
    assert line.startswith(f"error: a checkpoint in {tmp_path} could not be written")
    assert "File too large" in line
    assert {"1", "2"} == {
        path.name for path in tmp_path.iterdir() if "." not in path.name
    }


def test_a_bucket_restores_the_last_complete_checkpoint(saved, bucket):
    """An incomplete checkpoint is renamed; an unfinished save is deleted."""
    _, state = saved
    folder = epath.Path(bucket) / "checkpoints"
    with CheckpointStore(folder, keep=2) as store:
        for step in (1, 2, 3):
            store.save(step, state, {"step": step})
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]
    (folder / "4").mkdir()
    (folder / "4" / "part").write_text("x")
    (folder / "3" / "state" / "manifest.ocdbt").unlink()
    (_, notes), (line,) = restored(folder, state)
    assert notes == {"step": 2}
    assert line.startswith(f"{folder}/3 is damaged: ")
    names = {path.name for path in folder.iterdir()} - {"4"}
    assert names == {"2", "3.damaged"}


def test_an_empty_folder_is_not_taken_for_a_checkpoint(saved, tmp_path):
    source, state = saved
    shutil.copytree(source, tmp_path / "run")
    for folder, step in ((tmp_path / "run", 2), (tmp_path / "new", None)):
        (folder / "9999").mkdir(parents=True)
        (folder / "\u00b2").mkdir()  # a digit, but not a number
        checkpoint, lines = restored(folder, state)
        assert not lines
        assert (checkpoint and int(checkpoint[0]["step"])) == step
        assert not (folder / "9999").exists()
        with CheckpointStore(folder, keep=2) as store:
            store.save(3, state, {})
        assert (folder / "3").is_dir()


def test_a_failed_save_is_an_error_and_loses_no_checkpoint(
    saved, tmp_path, monkeypatch
):
    """The error is raised at the next save, at the end, or directly without a folder."""
    source, state = saved
    shutil.copytree(source, tmp_path / "run")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    commit = "orbax.checkpoint._src.path.atomicity.on_commit_callback"
    message = "a checkpoint in .*/run could not be written .*No space left on device"
    for last in ("next", "end"):
        store = CheckpointStore(tmp_path / "run", keep=1)
        with monkeypatch.context() as patch:
            patch.setattr(commit, full)
            store.save(3, state, {})
            with pytest.raises(UserError, match=message):
                store.save(4, state, {}) if last == "next" else store.wait()
        assert int(restored(tmp_path / "run", state)[0][0]["step"]) == 2
    # A deleted or read-only folder is noticed immediately.
    store = CheckpointStore(tmp_path / "run", keep=1)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match=r"a checkpoint in .*/run could not be written"):
        store.save(3, state, {})
        store.wait()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/checkpoints could not be written"):
        CheckpointStore(tmp_path / "file" / "checkpoints", keep=1)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_saves_leave_no_open_files_and_no_threads(saved, tmp_path):
    """A thread may end a moment after its save, but not several saves later."""
    _, state = saved
    store, files, threads = CheckpointStore(tmp_path, keep=1), [], []
    for step in range(1, 13):
        store.save(step, state, {})
        store.wait()
        files.append(len(list(Path("/proc/self/fd").iterdir())))
        threads.append(threading.active_count())
    assert min(files[-4:]) <= max(files[2:5])
    assert min(threads[-4:]) <= max(threads[2:5])


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (ValueError("Gloo all-reduce failed: Connection closed by peer"), []),
        (UserError("the loss became nan"), ["waited"]),
    ],
)
def test_a_lost_process_skips_the_wait_for_a_save(tmp_path, error, waits):
    """The save needs the lost process, so the wait would last until a timeout."""
    store, calls = CheckpointStore(tmp_path, keep=1), []
    store.wait = lambda: calls.append("waited")
    with pytest.raises(type(error)), store:
        raise error
    assert calls == waits


def test_checksums_wait_for_each_array_on_cpus_only(saved, monkeypatch):
    _, state = saved
    waits, wait = [], type(state["step"]).block_until_ready

    def counted(array):
        waits.append(array)
        return wait(array)

    monkeypatch.setattr(type(state["step"]), "block_until_ready", counted)
    on_cpu = train_state._checksums(state)
    assert len(waits) == len(on_cpu) == 4
    monkeypatch.setattr(train_state.jax, "default_backend", lambda: "gpu")
    assert train_state._checksums(state) == on_cpu
    assert len(waits) == 4


def test_a_checksum_depends_on_every_bit_and_not_on_the_layout(state):
    """Checkpoints contain these numbers, so the formula must not change."""
    checksums = train_state._checksums(state)
    assert len(checksums) == len(jax.tree.leaves(state)) > 50
    for name, array in arrays_by_path(state).items():
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        words = np.ravel(array).view({1: "u1", 2: "u2", 4: "u4"}[array.dtype.itemsize])
        place = np.arange(words.size, dtype=np.uint32) * np.uint32(0x9E3779B1)
        odd = place ^ (place >> 15) | 1
        assert checksums[name] == int((words.astype(np.uint64) * odd).sum() % 2**32), (
            name
        )
    name = "params/bert/embeddings/word/embedding"
    table = jax.device_get(state.params["bert"]["embeddings"]["word"]["embedding"])
    sharded = jax.device_put(table, state.params["bert"]["pooler"]["kernel"].sharding)
    assert int(train_state._checksum(sharded)) == checksums[name]
    words = table.view(np.uint32)
    for bit in range(32):
        changed = words.copy()
        changed[bit, bit % words.shape[1]] ^= np.uint32(1 << bit)
        assert int(train_state._checksum(changed.view(np.float32))) != checksums[name]
    swapped = table[[1, 0, *range(2, len(table))]]
    assert int(train_state._checksum(swapped)) != checksums[name]
