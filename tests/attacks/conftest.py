from __future__ import annotations

import sys
from pathlib import Path

# What the tests share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))
