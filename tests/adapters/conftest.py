from __future__ import annotations

import sys
from pathlib import Path

# The loop is shared with the child processes, which are scripts beside it.
sys.path.insert(0, str(Path(__file__).parent))
