"""Lists that a program printed into one cell of a table.

JSON writes ["a", "b"]. Python writes ['a', 'b'], ('a', 'b') and {'a', 'b'}. numpy writes
['a' 'b'], [1 0 1] and array(['a', 'b'], dtype=object). pandas writes Index(['a', 'b']).
"""

import ast
import json
import re
from typing import Any, NamedTuple

from bert_jax.tasks.rows import plain

# Functions of Python, numpy, pandas and torch around a list or a number.
_CALL = r"(?:\w+\.)?(?:array|Index|tensor|set|frozenset|str_|bool_?|u?int\d*|float\d*)"
_OPENS = re.compile(rf"\s*(?:[\[({{]|{_CALL}\()")
# The start of a list of texts or of a list in a function, and items without quotation marks
# in [] or {}. Texts such as "(CNN) London", "(none)" and "[laughs]" are not lists.
_LIKE_A_LIST = re.compile(
    rf"""(?x) \s* (?:
        [\[({{] [\s\[({{]* ['"]
        | [\s\[({{]* {_CALL}\(
        | \[ [^\]]* (?:,|\.\.\.) [^\]]* \] \s* $
        | \{{ [^}}]* (?:,|\.\.\.|:) [^}}]* \}} \s* $
    )"""
)
_TOKEN = re.compile(
    r"""(?xs)
    (?P<string> "(?:[^"\\]|\\[\\'"/abfnrtvxuU0-7])*" | '(?:[^'\\]|\\[\\'"abfnrtvxuU0-7])*')
    | (?P<number> [-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<name> [A-Za-z_][\w.]*)
    | (?P<mark> [\[\](){},:=])
    """
)
_CONSTANTS = {
    "None": None,
    "null": None,
    "nan": None,
    "True": True,
    "true": True,
    "np.True_": True,
    "False": False,
    "false": False,
    "np.False_": False,
}


def opens_list(cell: str) -> bool:
    """Whether a cell starts like a printed list."""
    return _OPENS.match(cell) is not None


def looks_like_list(cell: str) -> bool:
    """Whether a cell that may also be one text is a printed list, possibly a damaged one.

    Texts such as "(CNN) London" and "[laughs]" are not. A list parses. In a damaged list a
    quotation mark follows the bracket, a function such as array( is around it, or square or
    curly brackets around the whole cell contain a comma or "...", or curly brackets a
    colon.
    """
    return _LIKE_A_LIST.match(cell) is not None or parse_list(cell) is not None


def parse_list(cell: str) -> list[Any] | dict[str, Any] | None:
    """The list or the dictionary in a cell. None if the cell is not one.

    Tuples, sets and arrays become lists. numpy prints a long array with "..." in place of
    its values, so its cell is not a list.
    """
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        value = None
    if value is None:
        try:
            value = _Printed(cell).whole()
        except (ValueError, SyntaxError, RecursionError, IndexError):
            return None
    if isinstance(value, list | dict):
        return plain(value)
    return None


def is_list_beside(cell: str, other: Any) -> bool:
    """Whether a cell with a bracket is a list, not items with blanks between them.

    "( see above )" has four items with blanks between them. A cell is read as such items if
    their number equals the number of items in the other cell, unless the cell parses to a
    list of that length.

    other: the tags if the cell has words, or the words if it has tags; a list or a cell.
    """
    if re.match(rf"\s*(?:[\[({{]['\"]|{_CALL}\()", cell):
        return True
    others = {_count_items(other), _count_parsed(other)}
    is_parsed = parse_list(cell) is not None
    if is_parsed and _count_parsed(cell) in others:
        return True
    return _count_items(cell) not in others


def _count_items(value: Any) -> int:
    """The number of items of a list, or of items with blanks between them in a cell."""
    if isinstance(value, str):
        value = value.split()
    if isinstance(value, list | tuple):
        return len(value)
    return 0


def _count_parsed(value: Any) -> int:
    """The number of items of a list or a printed list, or else :func:`_count_items`."""
    if isinstance(value, str):
        items = parse_list(value)
        if items is not None:
            value = items
    return _count_items(value)


class _Token(NamedTuple):
    """A token of a printed value. has_gap: whether there are blanks before it."""

    kind: str
    text: str
    has_gap: bool


class _Printed:
    """Reads a printed value from the left.

    Its methods raise ValueError or SyntaxError for any other text, and IndexError for a
    text that ends early.
    """

    def __init__(self, text: str):
        text = text.strip()
        self.tokens: list[_Token] = []
        self.next = 0  # number of the next token
        position = 0
        while position < len(text):
            end_of_last = position
            while text[position].isspace():
                position += 1
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"unexpected text at {position}")
            token = _Token(match.lastgroup, match[0], position > end_of_last)
            self.tokens.append(token)
            position = match.end()

    def whole(self) -> Any:
        """The value of the whole text."""
        value = self.value()
        if self.next < len(self.tokens):
            raise ValueError("unexpected text after the value")
        return value

    def value(self) -> Any:
        """The value that starts at the next token."""
        token = self.tokens[self.next]
        self.next += 1
        if token.kind == "string":
            return _string(token.text)
        if token.kind == "number":
            return ast.literal_eval(token.text)
        if token.text == "[":
            return self.items("]", gaps=True)
        if token.text == "(":
            return self.items(")")
        if token.text == "{":
            return self.items("}")
        if token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        if re.fullmatch(_CALL, token.text):
            return self.call()
        raise ValueError(f"unexpected {token.text!r}")

    def items(self, closing: str, *, gaps: bool = False) -> list[Any] | dict[str, Any]:
        """The items up to a closing bracket, with commas between them.

        The items of a dictionary are pairs with a colon. gaps: whether items may have
        blanks between them instead of commas, as numpy prints them.
        """
        names, items = [], []
        has_comma = has_gap = False
        while not self.take(closing):
            items.append(self.value())
            if closing == "}" and self.take(":"):
                names.append(str(items.pop()))
                items.append(self.value())
            if self.take(","):
                has_comma = True
            elif not self.at(closing):
                has_gap = True
                if not self.tokens[self.next].has_gap:
                    raise ValueError("expected a blank or a comma")
        if has_gap and (has_comma or not gaps):
            raise ValueError("expected a comma")
        # Python prints a tuple of one value as ('a',). The value of ('a') is a text.
        if closing == ")" and len(items) == 1 and not has_comma:
            raise ValueError("expected a comma")
        is_empty_dictionary = closing == "}" and not items
        if names or is_empty_dictionary:
            return dict(zip(names, items, strict=True))
        return items

    def call(self) -> Any:
        """The first argument of a function. Named arguments, such as dtype, are skipped."""
        self.expect("(")
        if self.take(")"):
            return []
        value = self.value()
        self.take(",")
        while not self.take(")"):
            self.next += 1  # the name
            self.expect("=")
            self.next += 1  # a name, a text or a number
            self.take(",")
        return value

    def at(self, mark: str) -> bool:
        """Whether the next token is this mark."""
        token = self.tokens[self.next]
        return token.kind == "mark" and token.text == mark

    def take(self, mark: str) -> bool:
        """Steps over the mark if it is the next token."""
        found = self.at(mark)
        self.next += found
        return found

    def expect(self, mark: str) -> None:
        """Steps over the mark. Raises ValueError if it is not the next token."""
        if not self.take(mark):
            raise ValueError(f"expected {mark!r}")


def _string(text: str) -> str:
    """The value of a text in quotation marks of JSON or of Python."""
    if text.startswith('"'):
        try:
            return json.loads(text)
        except ValueError:
            pass  # a text of Python, such as "it's \x07"
    return ast.literal_eval(text)
