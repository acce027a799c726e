"""A loop whose parts Accelerate has prepared: `prepared_child.py FOLDER WHAT PART`."""

from __future__ import annotations

import json

import other_loops as loops
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process
from accelerate.utils import ProjectConfiguration

TOGETHER = 2  # micro-batches whose gradients accumulate


class Lines(GeneralTracker):
    """A tracker that needs no service: a line of JSON a step."""

    name = "lines"
    requires_logging_directory = False

    def __init__(self, path):
        super().__init__()
        self.path = path

    @property
    def tracker(self):
        return self.path

    def store_init_configuration(self, values):
        pass

    @on_main_process
    def log(self, values, step=None, **_):
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


def main():
    folder, what, part = loops.asked()
    path = folder / f"{what}-{part}.jsonl"
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=TOGETHER,
        log_with=Lines(path),
        project_config=ProjectConfiguration(project_dir=str(folder)),
    )
    accelerator.init_trackers("run")
    net = loops.net()
    optimizer, rate = loops.made(what, net.parameters())
    data = torch.utils.data.DataLoader(loops.rows(), batch_size=loops.BATCH // TOGETHER)
    net, optimizer, data, scheduler = accelerator.prepare(net, optimizer, data, rate)
    epochs, rates = range(2), []
    if part == "rest":
        accelerator.load_state(str(folder / what))
        epochs = range(1, 2)
    for epoch in epochs:
        for x, y in data:
            with accelerator.accumulate(net):
                accelerator.backward(loops.loss(net, x, y))
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                rates.append(loops.rate_of(optimizer.optimizer, rate))
                shown = rates[-1] if scheduler is None else scheduler.get_last_lr()[0]
                accelerator.log({"rate": shown}, step=len(rates))
        if epoch == 0:
            accelerator.save_state(str(folder / what))
    accelerator.end_training()
    logged = [json.loads(line)["rate"] for line in path.read_text().splitlines()]
    model = accelerator.unwrap_model(net)
    loops.told(folder, what, part, accelerator.process_index, model, rates, logged)


if __name__ == "__main__":
    main()
