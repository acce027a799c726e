"""What the simulator's kernel would take on an H200, counted from its machine code without one.

python benchmarks/roofline.py    # needs Triton (pip install 'driftrate[kernels]'), and no device

The kernel is compiled for the device, and the instructions of its loop over steps are counted. At
one instruction a cycle for each of the four schedulers of a processor, and two for a wide product,
that is the least time a step can take: waiting for memory, for barriers and for the few double
precision numbers of a seed comes on top of it, where no other program fills the gap.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
from triton.backends.compiler import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    GPUTarget,
)
from triton.compiler import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    ASTSource,
)

from driftrate.simulation import fused, fused_kernel

# The device: processors, the highest clock, and the raw normals a second of torch that
# `benchmarks/simulate.py --gpu` found on it.
PROCESSORS, CLOCK, RAW = 132, 1.98e9, 369e9
POINTERS = {
    **dict.fromkeys(("error", "moves", "truths"), "*fp32"),
    "moved": "*i32",
    **dict.fromkeys(("rates", "plan", "chi", "normal", "excesses", "alignments"), "*fp64"),
    "keys": "*i64",
}
NUMBERS = ("first", "steps", "stride", "dim")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compiled(kernel: Any, dim: int, logistic: bool) -> Any:
    """Return the kernel compiled for compute capability 9.0."""
    quarter = fused.quarter(dim, fused_kernel.LARGEST)
    fixed = {"LOGISTIC": logistic, "SOFT": True, "SAMPLES": 128, "QUARTER": quarter}
    signature = {
        **POINTERS,
        **dict.fromkeys(NUMBERS, "i32"),
        **dict.fromkeys(fixed, "constexpr"),
    }
    names = list(signature)
    aligned = [*POINTERS, "dim"]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in fixed.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": fused.warps(quarter), "maxnreg": fused.REGISTERS}
    options["enable_fp_fusion"] = True
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def longest_loop(cubin: bytes) -> list[str]:
    """Return the instructions of the longest loop."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = [str(TOOLS / "cuobjdump"), "-sass", file.name]
        text = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    lines = [(int(m[1], 16), m[2]) for m in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", text)]
    back = re.compile(r"BRA(?:\.\w+)* .*?(0x[0-9a-f]+)")
    loops = [(int(m[1], 16), at) for at, one in lines if (m := back.search(one))]
    low, high = max(loops, key=lambda loop: loop[1] - loop[0])
    return [one for at, one in lines if low <= at <= high]


def main() -> None:
    seeds, steps = 1024, 2000
    print(f"Triton {triton.__version__}, sm_90; {seeds} seeds, T = {steps}, linear or logistic")
    print(f"stream with B up to 256; {PROCESSORS} processors at {CLOCK / 1e9} GHz")
    for name, dim in (("resident", 1024), ("resident", 8192), ("swept", 65_536)):
        for logistic in (False, True):
            kernel = compiled(getattr(fused_kernel, name), dim, logistic)
            loop = longest_loop(kernel.asm["cubin"])
            wide = sum(bool(re.search(r"IMAD\.(WIDE|HI)", one)) for one in loop)
            warps = kernel.metadata.num_warps
            blocks = 1 if name == "resident" else dim // (fused_kernel.LARGEST // 2)
            cycles = (len(loop) + wide) * warps * blocks / 4
            least = cycles * seeds * steps / PROCESSORS / CLOCK
            rate = seeds * steps * dim / least
            print(
                f"  {name:8} d = {dim:6} {'logistic' if logistic else 'linear':8} {warps:2} warps,"
                f" {len(loop)} instructions a step and thread, {wide} of them wide products:"
                f" at least {1e3 * least:.0f} ms, {rate / 1e9:.0f} billion normals a second,"
                f" {rate / RAW:.0%} of the raw rate",
                flush=True,
            )


if __name__ == "__main__":
    main()
