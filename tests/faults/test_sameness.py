"""The same seed gives the same bits in different environments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SAME = str(Path(__file__).parent / "same.py")
OTHER = {
    **{"PYTHONHASHSEED": "4294967295", "TZ": "Pacific/Kiritimati", "SAME_THREADS": "4"},
    **{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    **{"SAME_WORKERS": "3", "RAYON_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"},
}


def test_hashes_dates_zones_locales_and_threads_change_no_bit(tmp_path):
    """The short form of ``python tests/faults/same.py``, which tests them one by one."""
    digests = []
    for name, around, flags in (
        ("here", {}, ()),
        ("there/it", OTHER, ("--years", "20")),
    ):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        done = subprocess.run(
            [sys.executable, SAME, "--steps", "3", *flags, str(folder)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | around,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        digests.append(json.loads(done.stdout.splitlines()[-1]))
    assert len(digests[0]) == 11
    assert digests[0] == digests[1]
