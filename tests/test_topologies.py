"""The table of all TPU slices, from results that are there already; nothing compiles."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "topologies.py"


@pytest.fixture
def topologies():
    spec = importlib.util.spec_from_file_location("topologies", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report():
    return {
        "topology": "v2:4x4",
        "num_slices": 1,
        "chips": 16,
        "devices": 32,
        "sequence_length": 512,
        "batch_size": 256,
        "argument_bytes": 2**30,
        "donated_bytes": 2**30 - 100,
        "temp_bytes": 2**31,
        "hbm_bytes": 2**33,
        "fits": True,
        "model_flops_per_device": 2.25e12,
        "seconds_at_peak": 0.1,
        "compiler_seconds": 0.125,
        "roofline_seconds": 0.12,
        "estimated_seconds": 0.2,
        "estimated_shares": {"matrix": 0.1, "vector": 0.1},
        "collectives": {"all-reduce": {"count": 3, "bytes": 267_000_000}},
        "compile_seconds": 99.0,
    }


def test_rows_are_of_configs_that_are_there_and_named_once(topologies):
    assert all((PATH.parents[1] / row[0]).is_file() for row in topologies.ROWS.values())
    assert len(set(topologies.ROWS.values())) == len(topologies.ROWS) == 11


def test_the_table_has_config_date_and_commit(
    topologies, report, tmp_path, capsys, monkeypatch
):
    result = {"report": report, "date": "2026-11-21", "commit": "abc", "problems": []}
    (tmp_path / "base-v2.json").write_text(json.dumps(result))
    monkeypatch.setattr(
        sys, "argv", ["", "--output", str(tmp_path), "--table", "--only=base-v2"]
    )
    assert topologies.main() == 0
    head, rule, row = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert row.startswith("| base | v2:4x4 | 16 | 32 | 256 x 512 | 1.00 | 2.00 | 8 |")
    assert "| yes, 62% |" in row
    assert row.endswith("| 2026-11-21 | abc |")


@pytest.mark.parametrize(
    ("change", "stderr", "problem"),
    [
        ({}, "", None),
        ({"fits": False}, "", "does not fit"),
        ({"temp_bytes": 2**33 - 2**30 - 2**29}, "", "less than a tenth of the memory"),
        ({"donated_bytes": 2**29}, "", "the state is held twice"),
        ({}, "W] Involuntary full rematerialization.", "an involuntary full remat"),
    ],
)
def test_what_a_row_must_not_have(topologies, report, change, stderr, problem):
    found = topologies._problems(report | change, stderr)
    assert len(found) == (problem is not None)
    assert all(line.startswith(problem) for line in found)
