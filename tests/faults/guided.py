"""Atheris drives a reader of fuzz.py: bytes that reach new lines are kept and go on.

fuzz.py changes seeds blindly, of which it runs some 5,000 a second; this looks at which
lines of bert_jax a case runs. It needs ``pip install atheris`` and runs until it finds
something, or as long as libFuzzer's flags say.

usage:
  python tests/faults/guided.py READER FOLDER [-max_total_time=60 ...]
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["bert_jax"]):
    sys.path.insert(0, str(Path(__file__).parent))
    import fuzz

    from bert_jax.progress import show_progress


def main() -> None:
    """FOLDER keeps what reached new lines; what is found lies in the current one."""
    name, kept, *flags = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    show_progress(False)
    reader = fuzz.READERS[name]
    Path(kept).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for i, seed in enumerate(fuzz.prepared(reader, Path(place))):
            Path(kept, f"seed{i}").write_bytes(seed)
        limits = ("-timeout=1", "-max_len=16384", "-rss_limit_mb=2048")
        atheris.Setup(
            [sys.argv[0], *limits, *flags, kept],
            lambda content: fuzz.check(reader, Path(place), content) and None,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
