from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

# The loop is shared with the child processes, which are scripts beside it.
sys.path.insert(0, str(Path(__file__).parent))

# Scripts in the loops of packages that only `make check` installs; doctests import every file.
_LOOPS = {"lightning": "module", "accelerate": "prepared", "transformers": "trainer"}
collect_ignore = [f"{name}_child.py" for package, name in _LOOPS.items() if not find_spec(package)]
