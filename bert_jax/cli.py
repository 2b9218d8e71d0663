"""What every command shares: how it starts, and how it fails."""

import sys
from collections.abc import Callable

from bert_jax.errors import UserError


def run(main: Callable[[list[str]], int | None]) -> None:
    """Runs ``main(argv)`` and exits; a UserError becomes one line and exit code 2."""
    try:
        code = main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:  # the reader of our output left, as `head` does
        code = 0
    except OSError as error:  # a full disk, a directory without permission
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        code = 2
    sys.exit(code)
