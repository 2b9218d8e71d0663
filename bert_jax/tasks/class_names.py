"""Names of classes: how the classes of a data set or a head become classes of a task."""

import functools
import logging
from collections.abc import Sequence

from bert_jax.errors import UserError, listed

logger = logging.getLogger(__name__)


@functools.cache  # warns once
def in_order_of(outputs: Sequence[str], labels: Sequence[str]) -> tuple[str, ...]:
    """The label of a task for each class of a data set or output of a head, by name.

    A name of another case matches if no name is equal. Names that are numbers, such as
    LABEL_0 or 0, are matched by position, with a warning. Raises UserError for other names.
    """
    by_name = {label.casefold(): label for label in labels}
    by_name |= {label: label for label in labels}
    found = [by_name.get(name, by_name.get(name.casefold())) for name in outputs]
    if None not in found and len({*found}) == len(outputs):
        return tuple(found)
    numbers = [str(i) for i in range(len(outputs))]
    numbered = any(
        [name.upper().removeprefix("LABEL_") for name in names] == numbers
        for names in (outputs, labels)
    )
    if numbered and len(outputs) == len(labels):
        pairs = zip(outputs, labels, strict=True)
        shown = ", ".join(f"{output} is {label}" for output, label in pairs)
        logger.warning(f"classes are matched by position: {shown}")
        return tuple(labels)
    raise UserError(
        f"the classes are {', '.join(outputs)}, the labels of the task "
        f"{', '.join(labels)}; give the task labels= with the names of the classes"
    )


def by_number(labels: Sequence[str]) -> dict[int, str]:
    """The label for each class number; empty if the name of any label is a number."""
    if any(name.lstrip("+-").replace(".", "", 1).isdecimal() for name in labels):
        return {}
    return dict(enumerate(labels))


def by_position(labels: Sequence[str], number: int) -> str | None:
    """The label for a class number, with a warning; None if there is none."""
    name = by_number(labels).get(number)
    if name is not None:
        _warn_of_positions(labels)
    return name


@functools.cache  # warns once
def _warn_of_positions(labels: Sequence[str]) -> None:
    numbers = listed([*map(str, range(len(labels)))])
    logger.warning(f"labels {numbers} are read as {listed(labels)}, by position")
