"""Downloads the text of small.py, of speedrun.py and of the studies, and BLiMP: 76 MB.

DATA gets wikipedia/ and books/, 46 MB of text, and blimp/data/, the pairs that models are
scored on. files.json names the commit on GitHub and the SHA-256 of each file. Files that
exist in DATA are only checked, so a copy of DATA from another machine needs no network.

usage:
  python experiments/data/download.py DATA
"""

import argparse
import hashlib
import http.client
import json
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).with_name("files.json")
UNFINISHED = ".unfinished"  # hidden, so that no corpus contains it


def main() -> None:
    """Parses the command line, downloads and checks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", metavar="DATA", type=Path, help="folder of the files")
    folder = parser.parse_args().data
    for name, source in json.loads(SOURCES.read_text()).items():
        complete(folder / name, source)
        count, what, terms = len(source["files"]), source["what"], source["terms"]
        print(
            f"{folder / name}: {count} files are right. {what}, {terms}, {source['page']}"
        )


def complete(folder: Path, source: Mapping[str, Any]) -> None:
    """Downloads the files of a source that the folder does not have, and checks all.

    source: "url", an address, and "files": for each name the "path" below the address and
    the "sha256". Ends the process if a file is wrong, unknown or cannot be downloaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = source["files"]
    for path in sorted(folder.iterdir()):
        if path.name not in files and not path.name.startswith("."):
            raise SystemExit(f"{path} is not a file of this text; move it elsewhere")
    for name, file in files.items():
        path = folder / name
        if path.exists():
            check(str(path), path.read_bytes(), file["sha256"])
            continue
        url = f"{source['url']}/{urllib.parse.quote(file['path'])}"
        content = downloaded(url, folder)
        check(url, content, file["sha256"])
        unfinished = folder / UNFINISHED
        unfinished.write_bytes(content)
        unfinished.replace(path)


def downloaded(url: str, folder: Path) -> bytes:
    """The content of an address. folder: for the message of an error."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except (OSError, http.client.HTTPException) as error:
        advice = f"try again later, or copy {folder} from another machine"
        raise SystemExit(f"cannot download {url}: {error}; {advice}") from error


def check(place: str, content: bytes, expected: str) -> None:
    """Ends the process if the content is not the expected one. place: for the message."""
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        problem = f"{place} has the SHA-256 {actual}, expected {expected}"
        raise SystemExit(f"{problem}; delete the file if it is yours, and start again")


if __name__ == "__main__":
    main()
