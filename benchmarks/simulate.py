"""How fast the exact simulator is: ratios, all measured in one run on one core.

python benchmarks/simulate.py            # everything but the GPU, about ten minutes
python benchmarks/simulate.py --quick    # shorter runs, no full-size memory run
python benchmarks/simulate.py --threads  # threads over seeds against one thread, two minutes
python benchmarks/simulate.py --gpu      # needs only numpy, torch, its Triton and array-api-compat
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import numpy as np

import driftrate as dr
from driftrate.streams import LinearStream, LogisticStream, Stream, spiral, standstill

SEEDS, BATCH, NOISE = 32, 256, 0.1
STREAMS: dict[str, Callable[..., Stream]] = {"linear": LinearStream, "logistic": LogisticStream}
RATIOS = {
    ("linear", 128): 30,
    ("linear", 1024): 100,
    ("linear", 8192): 200,
    ("logistic", 128): 10,
    ("logistic", 1024): 30,
    ("logistic", 8192): 100,
}


def seconds(
    call: Callable[[], Any], repeats: int = 1, clock: Callable[[], float] = time.process_time
) -> float:
    """Return the best time of a call; by default CPU time, which a busy machine changes least."""
    best = float("inf")
    for _ in range(repeats):
        start = clock()
        call()
        best = min(best, clock() - start)
    return best


def step_time(kind: str, dim: int, steps: int, repeats: int = 1, **options: Any) -> float:
    """Return the seconds per step of a whole run on the paper's moving path."""
    stream = STREAMS[kind](spiral(dim, steps), BATCH, NOISE)
    # The simplest schedule: the simulator is timed, not a schedule.
    rate = dr.ConstantRate(0.01)
    options = {"seeds": SEEDS, **options}
    return seconds(lambda: dr.simulate(stream, rate, **options), repeats) / steps


def raw_time(count: int, dtype: str = "float64", repeats: int = 200) -> float:
    """Return the seconds that NumPy's fastest generator needs for that many normals."""
    generator = np.random.Generator(np.random.SFC64(0))
    out = np.empty(count, dtype=dtype)

    def draw() -> None:
        for _ in range(repeats):
            generator.standard_normal(out=out, dtype=out.dtype)

    return seconds(draw, 3) / repeats


def verdict(value: float, bound: float) -> str:
    return f"wanted >= {bound:g}: {'yes' if value >= bound else 'NO'}"


def fast(steps: int) -> None:
    print(f"\nexact over direct: T = {steps}, B = {BATCH}, {SEEDS} seeds, float64, CPU ms a step")
    for kind in STREAMS:
        step_time(kind, 2, 20)  # imports and tables
    for (kind, dim), bound in RATIOS.items():
        exact = step_time(kind, dim, steps, 2)
        direct = step_time(kind, dim, 20, method="direct")
        line = f"  {kind:8} d = {dim:5}  exact {1e3 * exact:7.3f}  direct {1e3 * direct:8.2f}"
        print(f"{line}  ratio {direct / exact:6.1f}  {verdict(direct / exact, bound)}", flush=True)
        if kind == "linear":
            share = raw_time(SEEDS * dim, repeats=max(20, 200_000 // dim)) / exact
            wish = verdict(share, 0.5) if dim >= 1024 else ""
            print(f"           the generator's share of the time: {share:.2f}  {wish}", flush=True)


def growth() -> None:
    print(f"\ntime a step of the linear stream, {SEEDS} seeds, float64")
    dims = 2 ** np.arange(1, 17)
    times = np.array(
        [step_time("linear", int(d), max(10, min(500, 2_000_000 // int(d))), 3) for d in dims]
    )
    # Least squares of relative errors: every size counts the same.
    design = np.stack([1 / times, dims / times], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, np.ones(len(dims)), rcond=None)
    worst = np.abs((a + b * dims) / times - 1).max()
    raw = raw_time(SEEDS * 4096)
    print(f"  a + b d with a = {1e6 * a:.0f} us, b = {1e9 * b:.1f} ns ({SEEDS} normals raw take")
    print(
        f"  {1e9 * raw / 4096:.1f} ns); over d = 2 ... 65536 the fit is off by {worst:.0%} at most"
    )
    rate = dr.ConstantRate(0.01)
    path = spiral(128, 300)
    by_batch = []
    for batch in 10 ** np.arange(7):
        stream = LinearStream(path, int(batch), NOISE)
        by_batch.append(seconds(lambda s=stream: dr.simulate(s, rate, SEEDS), 5) / 300)  # type: ignore[misc]
    spread = max(by_batch) / min(by_batch)
    row = "  ".join(f"{1e6 * t:.0f}" for t in by_batch)
    print(f"  B = 1 ... 10^6 at d = 128: {row} us, largest over smallest {spread:.2f}", flush=True)


def small(steps: int) -> None:
    """Run the large case in this process, and print its peak memory."""
    dim, seeds = 65_536, 64
    stream = LinearStream(spiral(dim, steps, hold=8, dtype="float32"), BATCH, NOISE)
    rate = dr.LinearRate(dim=dim, noise_std=NOISE)
    took = seconds(lambda: dr.simulate(stream, rate, seeds, dtype="float32"))
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024**2
    path = steps * dim * 4 / 1024**3
    print(f"  {seeds} seeds, d = {dim}, T = {steps}, float32: peak {peak:.2f} GB with the path's")
    print(f"  {path:.2f} GB, {took:.0f} s; wanted < 1: {'yes' if peak < 1 else 'NO'}", flush=True)


def peer(steps: int) -> None:
    import jax
    import jax.numpy as jnp

    dim, drawn_steps = 1024, 20
    path = jnp.asarray(spiral(dim, drawn_steps, dtype="float32"))

    def step(theta: Any, inputs: Any) -> Any:
        target, key = inputs
        kx, ke = jax.random.split(key)
        x = jax.random.normal(kx, (SEEDS, BATCH, dim))
        noise = NOISE * jax.random.normal(ke, (SEEDS, BATCH))
        residual = jnp.einsum("sbd,sd->sb", x, theta - target) - noise
        gradient = jnp.einsum("sb,sbd->sd", residual, x) / BATCH
        regret = 0.5 * jnp.sum((theta - target) ** 2, axis=-1)
        return theta - 0.1 * gradient, regret

    @jax.jit
    def run(key: Any) -> Any:
        keys = jax.random.split(key, drawn_steps)
        return jax.lax.scan(step, jnp.zeros((SEEDS, dim)), (path, keys))[1]

    run(jax.random.key(0)).block_until_ready()
    theirs = seconds(lambda: run(jax.random.key(1)).block_until_ready(), 2) / drawn_steps
    stream = LinearStream(spiral(dim, steps), BATCH, NOISE)
    ours = seconds(lambda: dr.simulate(stream, dr.ConstantRate(0.1), SEEDS, dtype="float32"))
    ratio = theirs / (ours / steps)
    print("\npeer: jax.lax.scan with drawn batches, jitted, compiled before, float32, d = 1024")
    print(
        f"  {1e3 * theirs:.1f} ms a step, ours {1e3 * ours / steps:.3f}, ratio {ratio:.0f}", end=""
    )
    print(f"  {verdict(ratio, 20)}", flush=True)


def shared(steps: int, repeats: int) -> None:
    """Time threads over seeds, in turn with one thread and with threads that only draw."""
    cores = len(os.sched_getaffinity(0))
    print(f"threads over seeds: {cores} cores, B = {BATCH}, float64; wall clock, the fastest of")
    print(
        f"{repeats} in turn. 'drawing' is what the same threads gain where they only draw normals:"
    )
    print("on a busy machine less than their number. 'share' is the generator's of the CPU time.")
    for kind, dim, seeds in (
        ("linear", 1024, 256),
        ("linear", 8192, 32),
        ("linear", 8192, 128),
        ("logistic", 8192, 128),
    ):
        stream = STREAMS[kind](spiral(dim, steps), BATCH, NOISE)
        rate = dr.ConstantRate(0.01)
        pieces = [np.empty(seeds * dim // cores) for _ in range(cores)]
        sources = [np.random.Generator(np.random.SFC64(i)) for i in range(cores)]

        def draw(number: int, pieces: Any = pieces, sources: Any = sources) -> None:
            for piece, source in zip(pieces[number::cores], sources[number::cores], strict=True):
                for _ in range(steps):
                    source.standard_normal(out=piece)

        def run(threads: int, stream: Stream = stream, rate: Any = rate, n: int = seeds) -> Any:
            return dr.simulate(stream, rate, n, threads=threads)

        def one() -> None:
            for number in range(cores):
                draw(number)

        same = np.array_equal(run(1).regret, run(cores).regret)
        with ThreadPoolExecutor(cores) as pool:
            calls = {
                "one": lambda: run(1),
                "all": lambda: run(cores),
                "draw one": one,
                "draw all": lambda: list(pool.map(draw, range(cores))),
            }
            wall, cpu = (dict.fromkeys(calls, float("inf")) for _ in range(2))
            for _ in range(repeats):
                for name, call in calls.items():
                    start = time.process_time()
                    wall[name] = min(wall[name], seconds(call, 1, time.perf_counter))
                    cpu[name] = min(cpu[name], time.process_time() - start)
        gain, most = wall["one"] / wall["all"], wall["draw one"] / wall["draw all"]
        shares = [cpu["draw one"] / cpu[name] for name in ("one", "all")]
        print(
            f"  {kind:8} d = {dim:5}, {seeds:4} seeds: {1e3 * wall['one'] / steps:6.2f} ms a step,"
            f" {cores} threads {1e3 * wall['all'] / steps:6.2f}, ratio {gain:.2f}"
            f" (drawing {most:.2f})  {verdict(gain, 0.9 * cores)}\n"
            f"{'':11}share {shares[0]:.2f} with one thread, {shares[1]:.2f} with all, which take"
            f" {cpu['all'] / cpu['one']:.2f} times the CPU time; the same numbers:"
            f" {'yes' if same else 'NO'}",
            flush=True,
        )


def gpu(device: str, steps: int, dim: int = 8192, seeds: int = 1024) -> None:
    """Time the simulator on a device against its raw normals, and check its law there."""
    import torch

    from driftrate.simulation import Record, fused

    on_gpu = device.startswith("cuda")
    wait: Callable[[], Any] = torch.cuda.synchronize if on_gpu else (lambda: None)
    name = torch.cuda.get_device_name(device) if on_gpu else "CPU"
    generator = torch.Generator(device=device).manual_seed(0)
    out = torch.empty(seeds, dim, device=device)

    def draw() -> None:
        for _ in range(steps):
            out.normal_(generator=generator)
        wait()

    draw()
    raw = seconds(draw, 3, time.perf_counter)
    taken = fused.runs_on(torch.device(device))
    print(f"{name}, torch {torch.__version__}: {seeds} seeds, d = {dim}, T = {steps}, float32")
    print(f"  raw normals: {seeds * dim * steps / raw / 1e9:.1f} billion a second")
    print(f"  the fused kernel: {'yes' if taken else 'NO, everything below is without it'}")

    def timed(
        kind: str, motion: str, rate: Any, record: Any = None, repeats: int = 3 if taken else 1
    ) -> float:
        path = spiral(dim, steps) if motion == "moving" else standstill(dim, steps)
        stream = STREAMS[kind](path, BATCH, NOISE)
        options = {} if record is None else {"record": record}

        def run() -> None:
            dr.simulate(
                stream, rate, seeds, backend="torch", device=device, dtype="float32", **options
            )
            wait()

        run()  # compiles, and adds up the path
        took = seconds(run, repeats, time.perf_counter)
        thin = "" if record is None else ", nothing kept but the end"
        print(
            f"  {kind} stream, {motion} target, {rate.name}{thin}: {took:.3f} s,"
            f" {1e3 * took / steps:.4f} ms a step, {raw / took:.1%} of the raw rate",
            flush=True,
        )
        return took

    constant, linear = dr.ConstantRate(1e-3), dr.LinearRate(dim=dim, noise_std=NOISE)
    plain = timed("linear", "moving", constant)
    print(f"    {verdict(raw / plain, 0.30)}")
    print(f"    {verdict(raw / timed('linear', 'moving', linear), 0.15)}")
    logistic = timed("logistic", "moving", constant) / plain
    good = "yes" if logistic <= 3 else "NO"
    print(f"    {logistic:.2f} times the linear stream's; wanted <= 3: {good}")
    # Where the time goes: without rows of the path, and without what is copied to the host.
    timed("linear", "resting", constant)
    timed("logistic", "resting", constant)
    timed("linear", "resting", constant, Record(every=steps))
    if taken and on_gpu:
        for warps in (2, 4, 8, 16):
            with patch.object(fused, "warps", lambda width, warps=warps: warps):
                print(f"  {warps:2} warps a program:", end="")
                timed("linear", "resting", constant, Record(every=steps))
    # What the kernel does not cover: it reads the loss.
    timed("linear", "moving", dr.NonconvexRate(smoothness=1.0, noise_std=1.0), repeats=1)
    law(device)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        timed("linear", "moving", constant, Record(every=100))
        peak = torch.cuda.max_memory_allocated() - before
        print(f"  its peak memory: {peak / (seeds * dim * 4):.1f} times that of the weights")


def law(device: str, draws: int = 100_000) -> None:
    """Print how far gradients on the device are from those of drawn batches, in standard errors."""
    start = np.array([0.3, -0.2, 0.1])
    path = np.array([[0.5, -1.0, 0.4]])
    for kind, make in STREAMS.items():
        stream, rate = make(path, 9, 0.7), dr.ConstantRate(1.0)
        options: dict[str, Any] = {"start": start, "backend": "torch", "device": device}
        pair = [
            dr.simulate(stream, rate, draws, method="exact", dtype="float32", **options),
            dr.simulate(stream, rate, draws, method="direct", dtype="float32", seed=1, **options),
        ]
        # A step of rate 1 shows the gradient; its first and second moments are compared.
        one, other = (start - run.final_weights.astype(np.float64) for run in pair)
        i, j = np.triu_indices(3)
        one, other = (np.column_stack([g, g[:, i] * g[:, j]]) for g in (one, other))
        error = np.sqrt((one.var(axis=0) + other.var(axis=0)) / draws)
        worst = (np.abs(one.mean(axis=0) - other.mean(axis=0)) / error).max()
        good = "yes" if worst < 5 else "NO"
        print(f"  the law, {kind} stream: the worst of 9 moments of {draws} gradients is", end="")
        print(f" {worst:.1f} standard errors off; wanted < 5: {good}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the exact simulator.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", action="store_true")
    parser.add_argument("--gpu", nargs="?", const="cuda", metavar="DEVICE")
    parser.add_argument("--steps", type=int, default=2000, help="of the --gpu runs")
    parser.add_argument("--dim", type=int, default=8192, help="of the --gpu runs")
    parser.add_argument("--seeds", type=int, default=1024, help="of the --gpu runs")
    parser.add_argument("--small", type=int, metavar="STEPS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gpu:
        gpu(args.gpu, args.steps, args.dim, args.seeds)
        return
    if args.threads:
        shared(20, 8 if args.quick else 60)
        return
    # One core for all, the threads of JAX and BLAS included.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if args.small:
        small(args.small)
        return
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}, one core")
    fast(200 if args.quick else 2000)
    growth()
    peer(200 if args.quick else 2000)
    print("\nmemory, in a process of its own", flush=True)
    # A fresh process, because this one has had its peak already.
    subprocess.run(
        [sys.executable, __file__, "--small", "20" if args.quick else "2000"], check=True
    )


if __name__ == "__main__":
    main()
