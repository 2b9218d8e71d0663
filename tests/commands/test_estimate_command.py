"""The estimate command. Tests that need the TPU compiler are skipped without libtpu."""

import json

import jax
import pytest

from bert_jax.commands import estimate, startup
from bert_jax.errors import UserError
from bert_jax.training import estimate as training_estimate

# Adam has two moments of each parameter. Muon, which tiny uses, has one of a matrix.
TINY = (
    "--config=experiments/tiny.py",
    *("--phases[0].batch_size=32", "--optimizer.name=adam"),
)


def test_a_missing_topology_is_an_error():
    with pytest.raises(
        UserError, match="--topology is missing; give a TPU slice, such as v2:4x4"
    ):
        estimate.main(list(TINY))


def test_libtpu_is_quiet_before_it_is_loaded(monkeypatch):
    calls = []
    monkeypatch.setattr(startup, "quiet_libtpu", lambda: calls.append("quiet"))
    with pytest.raises(UserError, match="--topology=v9:2x2 failed"):
        estimate.main([*TINY, "--topology=v9:2x2"])
    assert calls == ["quiet"]


def test_a_report_is_printed_as_json(tpu_compiler, capsys):
    assert (
        estimate.main([*TINY, "--optimizer.name=adam", "--topology=v2:2x2", "--json"])
        == 0
    )
    report, longer = map(json.loads, capsys.readouterr().out.splitlines())
    assert (report["sequence_length"], longer["sequence_length"]) == (32, 64)
    assert (report["topology"], report["chips"]) == ("v2:2x2", 4)
    assert report["fits"]
    assert 0 < report["argument_bytes"] + report["temp_bytes"] < report["hbm_bytes"]
    # Parameters and two moments, 967,170 float32 each, are once on every device.
    assert 3 * 4 * 967_170 <= report["argument_bytes"] < 3.2 * 4 * 967_170
    # The optimizer's memory traffic takes longer than the matrix products at peak speed.
    assert report["flops"] / 22.5e12 < report["roofline_seconds"] < 0.01
    # Each gradient is sent once, in bfloat16 if it belongs to a kernel of the encoder.
    assert set(report["collectives"]) == {"all-reduce"}
    sent = report["collectives"]["all-reduce"]["bytes"]
    gradients = 4 * 967_170 - 2 * 2 * (4 * 128 * 128 + 2 * 128 * 512)
    assert gradients <= sent < gradients + 400


def test_both_times_are_printed_in_seconds():
    report = {
        "fits": True,
        "flops": 2.5e12,
        "hbm_bytes": 1 << 34,
        "flops_seconds": 0.0125,
        "bytes_seconds": 0.5,
        "roofline_seconds": None,
        "collectives": {"all-reduce": {"count": 2, "bytes": 3_000_000}},
    }
    lines = dict(line.split(maxsplit=1) for line in estimate.text(report).splitlines())
    assert lines["flops_seconds"] == "0.0125 s"
    assert lines["bytes_seconds"] == "0.5000 s"
    assert lines["roofline_seconds"] == "unknown"
    assert lines["hbm_bytes"] == "16.00 GiB"
    assert lines["collectives"] == "2 all-reduce 3 MB"


def test_a_topology_that_does_not_divide_the_batch_is_refused(tpu_compiler):
    with pytest.raises(
        UserError, match=r"phases\[0\].batch_size=8 is not a multiple of 32,"
    ):
        estimate.main([TINY[0], "--phases[0].batch_size=8", "--topology=v2:4x4"])


def test_a_step_that_does_not_fit_names_settings(tpu_compiler, capsys):
    large = ("--config=experiments/large.py", "--compute.dtype=float32")
    scanned = "--compute.scan_layers=True"  # 24 layers compile as one
    assert estimate.main([*large, scanned, "--topology=v2:2x2"]) == 1
    output = capsys.readouterr().out
    assert "v2:2x2" in output
    assert "no; try in this order: --compute.dtype=bfloat16, " in output


def test_each_topology_and_phase_is_compiled_with_every_flag(monkeypatch, capsys):
    """The exit code is 1 if any step does not fit. Only the first does not fit here."""
    calls = []

    def compiled(config, phase, topology):
        calls.append((phase.sequence_length, topology))
        return {"fits": len(calls) > 1}

    monkeypatch.setattr(training_estimate, "estimate_step", compiled)
    monkeypatch.setattr(training_estimate, "named_topology", lambda *named: named)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    flags = ["--topology=v2:2x2,v4:2x2x4", "--num_slices=3", "--json"]
    assert estimate.main([*TINY, *flags]) == 1
    first, second = ("v2:2x2", 3), ("v4:2x2x4", 3)
    assert calls == [(32, first), (64, first), (32, second), (64, second)]
    reports = [*map(json.loads, capsys.readouterr().out.splitlines())]
    assert [report["fits"] for report in reports] == [False, True, True, True]
    assert estimate.main([*TINY, *flags]) == 0
