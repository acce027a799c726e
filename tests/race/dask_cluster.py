"""A Dask cluster of processes that a test may stop, kill and start again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

distributed = pytest.importorskip("distributed")

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Cluster:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "scheduler.json"
        options = ["--port", "0", "--no-dashboard", "--scheduler-file", str(self.file)]
        self.scheduler = self._start("dask_scheduler", *options)
        self.workers = []
        self.client = None

    def _start(self, what, *options, **more):
        # As the `dask` command: its folder is not where a worker looks for modules.
        module = [sys.executable, "-P", "-m", f"distributed.cli.{what}"]
        return subprocess.Popen([*module, *options], **{**QUIET, "cwd": self.folder, **more})

    def join(self, count=1, threads=1, cwd=None, port=0):
        """Start workers and wait until all are there."""
        options = ["--scheduler-file", str(self.file), "--nthreads", str(threads), "--no-nanny"]
        options += ["--no-dashboard", "--local-directory", str(self.folder)]
        options += ["--worker-port", str(port)]
        more = {} if cwd is None else {"cwd": cwd}
        for _ in range(count):
            self.workers.append(self._start("dask_worker", *options, **more))
        if self.client is None:
            deadline = time.monotonic() + 60.0
            while not self.file.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.client = distributed.Client(scheduler_file=str(self.file), set_as_default=False)
        alive = sum(worker.poll() is None for worker in self.workers)
        self.client.wait_for_workers(alive, timeout=60)
        return self.workers[-count:]

    @property
    def options(self):
        return {"engine": "dask", "scheduler": self.client.scheduler.address}

    def close(self):
        if self.client is not None:
            self.client.close()
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait(timeout=30)


def die(*workers):
    """Kill workers, and wait until they are dead."""
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.wait(timeout=30)
