"""The aot command; what needs the TPU compiler is skipped where libtpu is not installed."""

import json

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax import aot
from bert_jax.errors import UserError

TINY = ("--config=experiments/tiny.py", "--config.phases[0].batch_size=32")


def test_without_a_topology_it_says_so():
    with pytest.raises(UserError, match="--topology is missing, such as v2:4x4"):
        aot.main(list(TINY))


@pytest.fixture
def compiler():
    pytest.importorskip("libtpu", reason="the TPU compiler: pip install libtpu")
    compilation_cache.reset_cache()  # or it has decided already that it is used
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def test_a_report_of_a_slice_as_json(compiler, capsys):
    assert aot.main([*TINY, "--topology=v2:2x2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["chips"], report["devices"]) == (4, 8)
    assert report["fits"]
    assert 0 < report["argument_bytes"] + report["temp_bytes"] < report["hbm_bytes"]
    # Parameters and two moments, 967,170 float32 each, are on every device, once.
    assert 3 * 4 * 967_170 <= report["argument_bytes"] < 3.2 * 4 * 967_170
    assert report["donated_bytes"] >= 3 * 4 * 967_170
    assert report["seconds_at_peak"] < report["estimated_seconds"] < 0.1
    # Gradients, in float32; the word table's twice, as it is tied. None is gathered.
    assert set(report["collectives"]) == {"all-reduce"}
    sent = report["collectives"]["all-reduce"]["bytes"]
    assert 4 * 967_170 <= sent < 4 * (967_170 + 4096 * 128) * 1.01


def test_slices_that_do_not_divide_the_batch_are_refused(compiler):
    with pytest.raises(UserError, match=r"batch_size=8 is not a multiple of 32"):
        aot.main([TINY[0], "--config.phases[0].batch_size=8", "--topology=v2:4x4"])


def test_a_step_that_does_not_fit_names_settings(compiler, capsys):
    large = ("--config=experiments/large.py", "--config.compute.dtype=float32")
    scanned = "--config.compute.scan_layers=True"  # 24 layers compile as one
    assert aot.main([*large, scanned, "--topology=v2:2x2"]) == 1
    output = capsys.readouterr().out
    assert "| no |" in output
    assert "does not fit; try --config.compute.dtype=bfloat16, then " in output
