"""The one exception that means "the user can fix this"."""


class UserError(Exception):
    """A one-line message: what was expected, what came, what to change.

    Commands print it after ``error:`` and exit with code 2; library code raises it
    only for input, settings and files that a user controls.
    """
