"""Entry point for `python -m roastcoffea`."""

import sys

from roastcoffea.cli import main

if __name__ == "__main__":
    sys.exit(main())
