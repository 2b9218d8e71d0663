"""The checks of ``bert_jax doctor``, each with a planted failure."""

import functools
import re
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from bert_jax.commands import cli, doctor
from bert_jax.errors import UserError
from bert_jax.training import checks

NAMES = [
    *("versions", "devices", "product", "attention", "dropout", "collective"),
    *("step in float32", "step in bfloat16", "save", "processes"),
]


def raises(error):
    def function(*args, **kwargs):
        raise error

    return function


def test_a_machine_that_trains_is_ready(tmp_path, capsys, monkeypatch):
    """With the real step in float32. A bfloat16 step would double the compile time."""
    step = checks.tiny_step
    numbers = {"float32": step("float32"), "bfloat16": (5.5, 3.2)}
    monkeypatch.setattr(checks, "tiny_step", numbers.get)
    monkeypatch.setattr(cli, "start", lambda flags: None)
    assert doctor.main(["--workdir", str(tmp_path / "runs/a")]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"ok {n}" for n in NAMES]
    assert last == "ready"
    assert f"jax {jax.__version__}" in lines[0] and "8 x cpu" in lines[1]
    assert re.match(
        r"ok dropout: plain drops 12\.[45]\d%, .*, bytes drops 12\.[45]", lines[4]
    )
    assert f" saved in {tmp_path}/" in lines[8]
    assert [*tmp_path.iterdir()] == []  # not even an empty folder


def test_later_checks_run_and_the_first_failure_ends_the_report(capsys, monkeypatch):
    monkeypatch.setattr(cli, "start", raises(UserError("no port")))
    for name in ("tiny_step", "_numbers"):
        monkeypatch.setattr(checks, name, raises(ValueError("wr\nong")))
    for name in ("attention", "dropout"):  # which take seconds
        monkeypatch.setattr(checks, name, lambda: "right")
    assert doctor.main([]) == 2
    out, err = capsys.readouterr()
    *lines, last = out.splitlines()
    assert [line.split(":")[0].split(" ", 1) for line in lines] == [
        ["ok" if n in (0, 2, 3, 4, 9) else "failed", name]
        for n, name in enumerate(NAMES)
    ]
    assert last == f"not ready: {lines[1].removeprefix('failed ')}"
    assert last.startswith("not ready: devices: no port; pip install")
    assert lines[5].startswith("failed collective: ValueError('wr\\nong'); start the")
    assert err.count("Traceback") == 4


def test_without_a_driver_no_later_check_runs(capsys, monkeypatch):
    monkeypatch.setattr(cli, "start", raises(RuntimeError("no driver")))
    assert doctor.main([]) == 2
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "devices: RuntimeError('no driver'); pip" in last


def test_a_check_that_hangs_ends_the_process_with_its_name(monkeypatch):
    ended, codes, failed, lines = threading.Event(), [], [], []

    def leave(code):
        codes.append(code)
        ended.set()

    monkeypatch.setattr(checks.os, "_exit", leave)
    monkeypatch.setattr(checks.faulthandler, "dump_traceback", lambda file: None)
    every = {"product": raises(UserError("full")), "save": lambda: str(ended.wait(60))}
    checks.run_checks(every, failed, lines.append, 0.01)
    assert codes == [2]
    assert lines[1].startswith("failed save: no answer in 0.01 s; use a --workdir that")
    assert lines[2] == f"not ready: {lines[0].removeprefix('failed ')}"


@pytest.mark.parametrize(
    ("dtype", "loss", "met"),
    [
        ("float32", 5.5044, True),
        ("float32", 5.506, False),
        ("bfloat16", 5.506, True),
        ("bfloat16", 5.7, False),
        ("bfloat16", np.nan, False),
    ],
)
def test_a_step_with_wrong_numbers_fails(dtype, loss, met, monkeypatch):
    monkeypatch.setattr(checks, "tiny_step", lambda _: (loss, 3.16488))
    if met:
        assert checks.step(dtype).startswith(f"loss {loss:g} and gradient norm 3.16488")
        return
    with pytest.raises(UserError, match=rf"^loss {loss:g} .* on a CPU 5\.5044 and"):
        checks.step(dtype)


@pytest.mark.parametrize(
    ("dtype", "scale", "met"),
    [
        ("float32", 1, True),
        ("float32", 1.01, False),
        ("bfloat16", 1, True),
        ("bfloat16", 1.05, False),
        ("bfloat16", np.nan, False),
    ],
)
def test_attention_with_wrong_numbers_fails(dtype, scale, met, monkeypatch):
    right = checks.attend
    monkeypatch.setattr(checks, "activation_dtype", lambda _: jnp.dtype(dtype))
    monkeypatch.setattr(
        checks, "attend", lambda q, *rest, **kw: right(q * scale, *rest, **kw)
    )
    if met:
        assert checks.attention().startswith(f"xla in {dtype}; relative difference")
        return
    with pytest.raises(UserError, match=f"^xla in {dtype}; relative difference"):
        checks.attention()


def test_attention_with_another_window_fails(monkeypatch):
    right = checks.attend

    def attend(*arrays, window, **options):
        if window:
            window += 1
        return right(*arrays, window=window, **options)

    monkeypatch.setattr(checks, "attend", attend)
    with pytest.raises(UserError, match=r"^with a window of 64; relative difference"):
        checks.attention()


def test_a_fused_kernel_that_agrees_is_recommended(monkeypatch):
    """A CPU interprets the TPU's kernel."""
    monkeypatch.setattr(checks, "kernel_platform", lambda: "tpu")
    facts = checks.attention()
    # Each of the two forms without and with a window.
    assert facts.count("relative difference") == 4
    assert facts.count("with a window of 64") == 2
    assert facts.endswith(
        "use it with compute.attention_impl=splash and model.attention_dropout=0"
    )


def test_masks_with_another_rate_fail(monkeypatch):
    none = functools.partial(jnp.ones, dtype=bool)
    monkeypatch.setattr(
        checks, "mask_function", lambda name: lambda key, rate, shape: none(shape)
    )
    with pytest.raises(
        UserError, match=r"^plain drops 0\.00%, .* expected 12\.50% and"
    ):
        checks.dropout()


def test_processes_compare_their_libraries_and_failed_checks(monkeypatch):
    compared = []
    monkeypatch.setattr(checks, "check_same", lambda *values: compared.append(values))
    checks.processes(["save: full"])
    (((versions, failed), _),) = compared
    assert f"jaxlib {jax.lib.__version__}" in versions and failed == "save: full"


def test_a_wrong_sum_fails(monkeypatch):
    assert checks.collective() == "the sum of 1 to 8 over the devices is 36"
    wrong = checks._numbers() + 1
    monkeypatch.setattr(checks, "_numbers", lambda: wrong)
    with pytest.raises(UserError, match=r"^the sum of 1 to 8 over the devices is 44$"):
        checks.collective()


def test_the_speed_of_a_product_counts_two_operations_for_each_pair(monkeypatch):
    monkeypatch.setattr(checks.timeit, "timeit", lambda run, number: number * 1e-4)
    # 2 * 512**3 operations in 0.1 ms. The peak of a CPU is unknown.
    assert checks.product() == "2.68 TFLOP/s on the slowest device"


def test_a_wrong_product_fails(monkeypatch):
    monkeypatch.setattr(checks.jnp, "matmul", lambda x, y: x @ y + 8)
    with pytest.raises(UserError, match=r"computes .*520.*, expected 512"):
        checks.product()


@pytest.mark.parametrize("file", ["nvidia0", "accel0", "vfio/0"])
def test_an_accelerator_that_jax_does_not_use_fails(file, tmp_path):
    before = jax.config.jax_platforms
    try:
        jax.config.update("jax_platforms", None)
        assert "8 x cpu" in checks.devices(tmp_path)
        (tmp_path / "vfio").mkdir()
        (tmp_path / file).touch()
        with pytest.raises(UserError, match=f"JAX uses the CPU, but there is .*{file}"):
            checks.devices(tmp_path)
        jax.config.update("jax_platforms", "cpu")
        assert "8 x cpu" in checks.devices(tmp_path)
    finally:
        jax.config.update("jax_platforms", before)


def test_an_unwritable_folder_fails(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/\.doctor could not be written"):
        checks.save(str(tmp_path / "file"))
    forbidden = raises(PermissionError(13, "Permission denied"))
    with monkeypatch.context() as patch:
        patch.setattr(type(epath.Path(tmp_path)), "mkdir", forbidden)
        with pytest.raises(UserError, match="Permission denied"):
            checks.save(str(tmp_path))
    with monkeypatch.context() as patch:  # a disk that loses saved data
        patch.setattr(checks.CheckpointStore, "save", lambda *_: None)
        with pytest.raises(UserError, match="does not have the array that was saved"):
            checks.save(str(tmp_path))
    (tmp_path / ".doctor/1").mkdir(parents=True)  # left by a killed process
    (tmp_path / ".doctor/1/file").touch()
    assert "and restored" in checks.save(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_save_in_a_bucket_leaves_no_files(bucket):
    assert checks.save(f"{bucket}/runs/a").endswith("and restored")
    assert not epath.Path(bucket).exists()


def test_unsuitable_libraries_are_a_one_line_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UserError, match=r"^JAX needs a library .* pip install"):
        doctor.main([])
