"""`python -m attnorm <verb> ...`"""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, whose files could take the place of libraries
    from attnorm.cli.main import main

    sys.exit(main())
