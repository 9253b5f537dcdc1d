"""The one exception that Rollax raises for a value its user gave."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A value that the user gave cannot work.

    The message is one sentence that names the field, the value and the remedy; the command line prints it and exits
    with status 2. It is always raised from concrete values, before anything is traced or compiled.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))  # arrays and other errors print on several lines


def nearest(name: str, options: Iterable[str], count: int = 3) -> str:
    """Returns a clause that names the options closest to `name`, or all of them where there are few.

    Args:
        name: What the user wrote.
        options: The names that would have been accepted.
        count: How many close names to give at the most.
    """
    options = sorted(options)
    lowered = {option.lower(): option for option in options}
    close = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, count, cutoff=0.5)]
    if close:
        return f"did you mean {' or '.join(repr(option) for option in close)}?"
    if len(options) <= 12:
        return f"choose one of {', '.join(options)}."
    return f"there are {len(options)} to choose from, such as {', '.join(options[:3])}."
