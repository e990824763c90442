"""The command ``infocnf``. Heavy imports happen inside the commands, so that help is instant.

Exit codes: 0 done, 1 the work failed, 2 bad usage or input.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit; where a package of the extras is missing, say how to get it."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        from infocnf.cli.app import run

        code = run(given)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package == "infocnf" or "--debug" in given:
            raise
        print(f"infocnf: {package} is not installed: pip install 'infocnf[all]'", file=sys.stderr)
        code = 2
    sys.exit(code)
