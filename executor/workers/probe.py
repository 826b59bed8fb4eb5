"""A training run timed without queueing for a core: `python -m executor.workers.probe JOB.json`.

The same run as `executor.workers.train`, on a clock that stands still while the rank waits for a core that other work
holds. So calibration on a busy machine learns what a quiet one would show; what ranks wait for each other stays in.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from executor.workers.quiet import QuietClock

# Before anything binds the function by name.
time.perf_counter = QuietClock()

from executor.workers import train  # noqa: E402

if __name__ == "__main__":
    train.main(Path(sys.argv[1]))
