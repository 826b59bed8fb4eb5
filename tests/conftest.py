"""Shared test settings: no deadlines (the suite never times things), a cache folder of its own."""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

# The suite draws the same examples each time: a commit passes or fails for good. `make explore` draws others.
settings.register_profile("advisor", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("ADVISOR_EXAMPLES", "advisor"))

# Texts are compared on the widest page; tests of narrow ones ask for theirs.
os.environ["COLUMNS"] = "100"
os.environ.setdefault("ADVISOR_CACHE", os.path.join(tempfile.gettempdir(), f"advisor-cache-{os.getuid()}"))
