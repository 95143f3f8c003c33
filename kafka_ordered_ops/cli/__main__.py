"""``python -m kafka_ordered_ops.cli``."""

import sys

from kafka_ordered_ops.cli import main

sys.exit(main())
