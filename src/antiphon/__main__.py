"""`python -m antiphon` is `antiphon`."""

import sys

from antiphon.cli import main

sys.exit(main())
