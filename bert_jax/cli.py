"""What every command shares: how it starts, and how it fails."""

import errno
import sys
from collections.abc import Callable

from bert_jax.errors import Preempted, UserError

PREEMPTED = 75  # exit code of a run that saved and is to be started again: EX_TEMPFAIL


def run(main: Callable[[list[str]], int | None]) -> None:
    """Runs ``main(argv)`` and exits; a UserError becomes one line and exit code 2."""
    try:
        code = main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except Preempted as stop:
        print(stop, file=sys.stderr)
        code = PREEMPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # the reader of our output left, as `head` does
        code = 0
    except OSError as error:  # a full disk, a directory without permission
        where = f" ({error.filename})" if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "; make room and run the same command again" if full else ""
        print(f"error: {error.strerror or error}{where}{hint}", file=sys.stderr)
        code = 2
    sys.exit(code)
