"""Resume every checkpoint of a folder in this new process; save the weights that come out."""

from __future__ import annotations

import sys
from pathlib import Path

import small_loop
import torch


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.pt")):
        kind, mode = path.stem.split("@")
        saved = torch.load(path, weights_only=True)
        net, optimizer, rate = small_loop.start(kind, mode)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        rate.load_state_dict(saved["rate"])
        first = saved["next"]
        rates = small_loop.run(net, optimizer, rate, range(first, first + small_loop.STEPS))
        torch.save({"model": net.state_dict(), "rates": rates}, path.with_suffix(".done"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
