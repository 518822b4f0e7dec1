"""`python -m fedprompt.harness.cli`, the same as `fedprompt`."""

import sys

from fedprompt.harness.cli import main

if __name__ == "__main__":
    sys.exit(main())
