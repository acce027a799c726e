from __future__ import annotations

import sys
from pathlib import Path

# The browser's driver lies beside the tests.
sys.path.insert(0, str(Path(__file__).parent))
