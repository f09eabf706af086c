"""``python -m kartosql``."""

import sys

from kartosql.cli.main import main

sys.exit(main())
