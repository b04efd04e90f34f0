"""Entry point of ``python -m ldstyle``."""

import sys

from ldstyle.cli import main

sys.exit(main())
