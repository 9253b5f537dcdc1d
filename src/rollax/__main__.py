"""The command line: `rollax ...` and `python -m rollax ...` are the same program."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    Args:
        argv: The arguments after the program's name; those of this process when `None`.
    """
    # Imported here, so that importing this module (a debugger, a documentation tool) loads none of the command line.
    from rollax.experiments import cli

    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(main())
