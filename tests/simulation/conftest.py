from __future__ import annotations

import sys
from pathlib import Path

# The kernel's numbers in NumPy lie beside the tests that compare with them.
sys.path.insert(0, str(Path(__file__).parent))
