"""`python -m leafwise`."""

import sys

from leafwise.cli import main

sys.exit(main())
