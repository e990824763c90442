"""The command ``infocnf``. Heavy imports happen inside the commands, so that help is instant.

Exit codes: 0 done, 1 the work failed, 2 bad usage or input.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit."""
    try:
        from infocnf.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "infocnf":
            raise
        print(
            f"infocnf: {error.name} is not installed: pip install 'infocnf[all]'", file=sys.stderr
        )
        sys.exit(2)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
