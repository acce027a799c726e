"""What an attached rate costs: whole training steps, as ratios to the bare loop in the same run.

    python benchmarks/adapters.py               # CPU: MLP of 10 million parameters, B = 256
    python benchmarks/adapters.py --gpu         # GPU: 100 million, bf16, fused AdamW; and checks

Steps of all rows are interleaved and each row's figure is its fastest step, so that a busy machine
slows all alike. Prodigy and schedule-free are timed too where they are installed.
"""

from __future__ import annotations

import argparse
import importlib
import io
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import driftrate as dr
import driftrate.torch

STEPS = 40
Step = Callable[[], object]
# Optimizers that people would use instead: name, package, class.
PEERS = (
    ("Prodigy", "prodigyopt", "Prodigy"),
    ("schedule-free AdamW", "schedulefree", "AdamWScheduleFree"),
)


def network(widths: Iterable[int], **options: Any) -> nn.Sequential:
    sizes = list(widths)
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following, **options), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Loop:
    """A bare training loop, or one with an attached rate."""

    def __init__(
        self,
        widths: tuple[int, ...],
        batch: int,
        make: Callable[[Iterable[nn.Parameter]], Any],
        mode: Any = None,
        metric: Any = None,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.net = network(widths, **options)
        self.optimizer = make(self.net.parameters())
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        self.x = torch.randn(batch, widths[0], **options)
        self.y = torch.randint(widths[-1], (batch,), device=options.get("device"))
        self.rate = mode and driftrate.torch.attach(
            self.optimizer, dr.MeasuredRate(), mode=mode, batch_size=batch, metric=metric
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss in single precision."""
        return nn.functional.cross_entropy(self.net(x).float(), y)

    def __call__(self) -> None:
        """Take one whole training step."""
        self.optimizer.zero_grad()
        if self.rate and self.rate.mode == "parts":
            self.rate.backward(self.loss, self.x, self.y)
        else:
            self.loss(self.x, self.y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def best_of(rows: Mapping[str, Step], clock: Callable[[Step], float]) -> dict[str, float]:
    """Return each row's fastest of `STEPS` interleaved steps in seconds, after a warm-up."""
    for step in rows.values():
        for _ in range(3):
            step()
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(STEPS):
        for name, step in rows.items():
            best[name] = min(best[name], clock(step))
    return best


def wall_clock(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def waiting_clock(step: Step) -> float:
    """Return the time for a step with the device idle before and after it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def device_clock(step: Step) -> float:
    """Return the device's time for a step, with the host one step ahead as in a long run."""
    torch.cuda.synchronize()
    ticks: list[Any] = []
    for _ in range(3):
        ticks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        ticks[-1].record()
        step()
    torch.cuda.synchronize()
    return float(ticks[1].elapsed_time(ticks[2])) / 1e3


def peers(base: float) -> dict[str, Callable[[Iterable[nn.Parameter]], Any]]:
    found: dict[str, Callable[[Iterable[nn.Parameter]], Any]] = {}
    for name, package, cls in PEERS:
        try:
            made = getattr(importlib.import_module(package), cls)
        except ImportError:
            print(f"{name}: {package} is not installed")
            continue
        found[name] = partial(made, lr=base)
    return found


def show(title: str, best: dict[str, float], base: str) -> None:
    print(f"\n{title}\n{'':<34}{'ms':>10}{'ratio':>9}")
    for name, seconds in best.items():
        print(f"{name:<34}{seconds * 1e3:>10.3f}{seconds / best[base]:>9.3f}")


def cpu() -> None:
    widths = (1024, 1792, 1792, 1792, 1000)

    def adamw(p: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=1e-4, fused=True)

    rows: dict[str, Step] = {
        "bare": Loop(widths, 256, adamw),
        "sequence (target 1.12)": Loop(widths, 256, adamw, mode="sequence"),
        "sequence, plain metric": Loop(widths, 256, adamw, mode="sequence", metric="plain"),
        "half-batches (target 1.45)": Loop(widths, 256, adamw, mode="parts"),
    }
    rows |= {name: Loop(widths, 256, make) for name, make in peers(1e-4).items()}
    threads = torch.get_num_threads()
    title = f"CPU, {threads} threads, MLP of 10 million parameters, B = 256, fused AdamW"
    show(title, best_of(rows, wall_clock), "bare")


def gpu() -> None:
    check_gpu()
    widths = (4096, 5632, 5632, 5632, 2048)
    place: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}

    def tensor(p: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=torch.tensor(1e-4, device="cuda"), fused=True)

    def plain(p: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=1e-4, fused=True)

    for batch in (256, 4096, 16384):
        rows = {
            "bare": Loop(widths, batch, tensor, **place),
            "sequence, no host sync": Loop(widths, batch, tensor, mode="sequence", **place),
            "sequence, plain metric": Loop(
                widths, batch, tensor, mode="sequence", metric="plain", **place
            ),
            "sequence, float rate": Loop(widths, batch, plain, mode="sequence", **place),
            "half-batches, no host sync": Loop(widths, batch, tensor, mode="parts", **place),
        }
        rows |= {name: Loop(widths, batch, make, **place) for name, make in peers(1e-4).items()}
        size = sum(p.numel() for p in network(widths, device="meta").parameters())
        title = f"{torch.cuda.get_device_name()}, {size / 1e6:.0f} million parameters, bf16"
        if batch == 256:
            show_memory(rows, 2 * size)
        # Both clocks are shown: which one flatters depends on whether host or device waits.
        for name, clock in (("host waits", waiting_clock), ("host ahead", device_clock)):
            show(f"{title}, fused AdamW, B = {batch}, {name}", best_of(rows, clock), "bare")
        del rows
        torch.cuda.empty_cache()


def show_memory(rows: Mapping[str, Loop], gradient: int) -> None:
    """Print the memory that a step needs beyond what stays allocated between steps."""
    for name, step in rows.items():
        step()
        step()
        step.optimizer.zero_grad()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        most = (torch.cuda.max_memory_allocated() - before) / gradient
        print(f"{name:<34}{most:>10.3f} gradients of bytes at the peak of a step")


def check_gpu() -> None:
    """Show that nothing is read back, also in a CUDA graph, and that a graph counts its replays."""
    check_compiled()
    check_sums()
    widths = (64, 128, 10)
    for kind in ("fused", "capturable"):

        def make(p: Iterable[nn.Parameter], kind: str = kind) -> torch.optim.Optimizer:
            rate = torch.tensor(1e-3, device="cuda")
            if kind == "fused":
                return torch.optim.AdamW(p, lr=rate, fused=True)
            return torch.optim.AdamW(p, lr=rate, capturable=True)

        for mode in ("sequence", "parts", "accumulation"):
            loop = Loop(widths, 32, make, mode=mode, device="cuda")
            loop()
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            for _ in range(5):
                loop()
            torch.cuda.set_sync_debug_mode("default")
            assert loop.rate.steps == 6
            print(f"no host sync: {kind}, {mode}")
    check_graph(widths)
    check_scaler(widths)
    check_resume(widths)


def check_sums() -> None:
    """Show that the fused sums are those of the definition, also at odd sizes."""
    from driftrate.adapters.torch.measure import compared
    from driftrate.adapters.torch.metric import Weight

    torch.manual_seed(0)
    like, names = torch.zeros((), device="cuda"), ("square", "product", "apart", "whole")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        shapes = [(3,), (1024, 1025), (4096, 4096)]
        new, old = ([torch.randn(s, device="cuda", dtype=dtype) for s in shapes] for _ in range(2))
        moments = [torch.rand(shape, device="cuda", dtype=dtype) for shape in shapes]
        for weighed in (False, True):
            weights = [Weight(moment, 1e-3, 0.5) if weighed else None for moment in moments]
            sums = compared(new, old, like, weights, 0.25, wanted=names)
            wide: dict[str, float] = dict.fromkeys(names, 0.0)
            for ours, theirs, v in zip(new, old, moments, strict=True):
                a, b = ours.double(), theirs.double()
                over = 0.5 / (v.double().sqrt() + 1e-3) if weighed else torch.ones_like(a)
                pairs = ((a, a), (a, b), (a - b / 4, a - b / 4), (a + b, a + b))
                for name, (x, y) in zip(names, pairs, strict=True):
                    wide[name] += float((over * x * y).sum())
            for name in names:
                off = abs(float(sums[name]) - wide[name]) / wide["square"]
                assert off < 1e-6, (dtype, weighed, name, off)
    print("fused sums: within 1e-6 of double precision")


def check_compiled() -> None:
    """Show what compiling an update takes, that it is done once, and that it changes nothing."""
    from driftrate.adapters.torch.program import Program

    schedule = dr.MeasuredRate(max_rate=1.0, mode="sequence")
    like = torch.zeros((), device="cuda")
    fast, state = Program(schedule, like), schedule.init(like=like)
    torch.manual_seed(0)
    took, off = [], 0.0
    for number in range(100):
        values = 1.0 + torch.rand(2, device="cuda")
        told = dr.Signal(batch_size=64 + number, dim=1e4, grad_sq=values[0], trail=values[1])
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=number > 0):
            fast.update(told)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
        expected, state = schedule.update(state, told)
        off = max(off, float((fast.state["rate"] / expected - 1.0).abs()))
    assert fast._compiles
    assert off < 1e-3, off
    print(
        f"compiled update: {took[0]:.1f} s once, then {min(took) * 1e6:.0f} us;"
        f" rates within {off:.1g} of the uncompiled ones over 100 steps"
    )


def check_resume(widths: tuple[int, ...]) -> None:
    """Show that a resumed run is an uninterrupted one, bit by bit."""

    def make(p: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(p, lr=torch.tensor(1e-3, device="cuda"), fused=True)

    def run(loop: Loop, numbers: Iterable[int]) -> None:
        for number in numbers:
            torch.manual_seed(number)
            loop.x.copy_(torch.randn_like(loop.x))
            loop()

    for mode in ("sequence", "parts"):
        one, other = (Loop(widths, 32, make, mode=mode, device="cuda") for _ in range(2))
        run(one, range(20))
        for thing in ("net", "optimizer", "rate"):
            saved = io.BytesIO()
            torch.save(getattr(one, thing).state_dict(), saved)
            saved.seek(0)
            getattr(other, thing).load_state_dict(torch.load(saved, weights_only=True))
        run(one, range(20, 60))
        run(other, range(20, 60))
        pairs = zip(one.net.parameters(), other.net.parameters(), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
        assert one.rate.record["rate"] == other.rate.record["rate"]
    print("resumed runs: equal bit by bit after 40 steps")


def check_graph(widths: tuple[int, ...]) -> None:
    outcomes = []
    for captured in (False, True):
        loop = Loop(
            widths,
            32,
            lambda p: torch.optim.AdamW(
                p, lr=torch.tensor(1e-3, device="cuda"), capturable=True, foreach=True
            ),
            mode="sequence",
            device="cuda",
        )
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                loop()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph):
                loop()
        step: Step = graph.replay if captured else loop
        rates = []
        for number in range(20):
            torch.manual_seed(number)
            loop.x.copy_(torch.randn_like(loop.x))
            step()
            rates.append(loop.rate.record["rate"])
        assert loop.rate.steps == 23
        outcomes.append((rates, [p.detach().clone() for p in loop.net.parameters()]))
    (rates, weights), (replayed, others) = outcomes
    torch.testing.assert_close(torch.tensor(replayed), torch.tensor(rates), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(others, weights, rtol=1e-3, atol=1e-4)
    assert len(set(rates)) > 1
    print(f"CUDA graph: 20 replays equal 20 steps, rates {min(rates):.3g} to {max(rates):.3g}")


def check_scaler(widths: tuple[int, ...]) -> None:
    loop = Loop(
        widths,
        32,
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3, device="cuda"), fused=True),
        mode="sequence",
        device="cuda",
    )
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    for number in range(8):
        loop.optimizer.zero_grad()
        bad = torch.full((), float("inf") if number == 4 else 1.0, device="cuda")
        scaler.scale(loop.loss(loop.x, loop.y) * bad).backward()  # type: ignore[no-untyped-call]
        scaler.step(loop.optimizer)
        scaler.update()
    assert loop.rate.steps == 7
    assert all(bool(p.isfinite().all()) for p in loop.net.parameters())
    print("loss scaler, fused: the skipped step is not counted")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true")
    gpu() if parser.parse_args().gpu else cpu()
