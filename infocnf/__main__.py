"""``python -m infocnf`` is the command ``infocnf``."""

from infocnf.cli import main

if __name__ == "__main__":
    main()
