"""A module with hooks, trained by Lightning: `module_child.py FOLDER WHAT PART RANKS`."""

from __future__ import annotations

import csv
import os
import sys

import lightning
import other_loops as loops
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy


class Module(lightning.LightningModule):
    def __init__(self, what):
        super().__init__()
        self.what, self.rates = what, []
        self.net = loops.net()

    def configure_optimizers(self):
        ddp = self.trainer.strategy.model if self.what == "ranks" else None
        self.optimizer, self.rate = loops.made(self.what, self.net.parameters(), ddp)
        if self.rate is None:
            return self.optimizer
        scheduler = {"scheduler": self.rate, "interval": "step"}
        return {"optimizer": self.optimizer, "lr_scheduler": scheduler}

    def training_step(self, batch, _):
        return loops.loss(self.net, *batch)

    def on_train_batch_end(self, *_):
        self.rates.append(loops.rate_of(self.optimizer, self.rate))
        if self.rate is None:
            self.log("rate", self.optimizer.record["rate"].mean())


def main():
    folder, what, part = loops.asked()
    ranks = int(sys.argv[4])
    rows, share = loops.rows(), None
    if ranks > 1:  # Lightning's own sampler would shuffle the stream
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        share = torch.utils.data.DistributedSampler(rows, ranks, rank, shuffle=False)
    data = torch.utils.data.DataLoader(rows, loops.BATCH // ranks, sampler=share)
    module = Module(what)
    logger = CSVLogger(folder, name=f"log-{what}-{part}", flush_logs_every_n_steps=1)
    keep = ModelCheckpoint(folder / what, filename="{epoch}", save_top_k=-1)
    watch = [] if what == "pursuit" else [LearningRateMonitor(logging_interval="step")]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo") if ranks > 1 else "auto",
        use_distributed_sampler=False,
        max_epochs=2,
        logger=logger,
        log_every_n_steps=1,
        callbacks=[keep, *watch],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data, ckpt_path=folder / what / "epoch=0.ckpt" if part == "rest" else None)
    logged = []
    if trainer.is_global_zero:
        with open(f"{logger.log_dir}/metrics.csv") as file:
            names = {"pursuit": "rate", "attach": "lr-AdamW", "ranks": "lr-SGD"}
            name = names[what]
            logged = [float(row[name]) for row in csv.DictReader(file) if row[name]]
    loops.told(folder, what, part, trainer.global_rank, module.net, module.rates, logged)


if __name__ == "__main__":
    main()
