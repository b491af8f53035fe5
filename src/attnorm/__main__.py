"""`python -m attnorm <verb> ...`"""

import sys

from attnorm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
