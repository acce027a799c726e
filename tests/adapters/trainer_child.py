"""A small transformer from scratch, in the Trainer: `trainer_child.py FOLDER WHAT PART`."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import other_loops as loops
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

WORDS, LENGTH, BATCH = 23, 16, 8
STEPS = 60  # of an epoch


class Text(torch.utils.data.Dataset):
    """Sentences in which a word's successor is drawn anew half way through an epoch."""

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        rules = [torch.randperm(WORDS, generator=generator) for _ in range(2)]
        words = torch.randint(WORDS, (STEPS * BATCH,), generator=generator)
        sentences = [words]
        half = torch.arange(len(words)) < len(words) // 2
        for _ in range(LENGTH - 1):
            words = torch.where(half, rules[0][words], rules[1][words])
            sentences.append(words)
        self.ids = torch.stack(sentences, 1)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Watch(TrainerCallback):
    """Put the rate into the logs that the Trainer writes."""

    def __init__(self, optimizer, rate):
        self.optimizer, self.rate, self.rates = optimizer, rate, []

    def on_step_end(self, args, state, control, **_):
        self.rates.append(loops.rate_of(self.optimizer, self.rate))

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs and self.rate is None:
            state.log_history[-1]["rate"] = self.rates[-1]


def main():
    folder, what, part = loops.asked()
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": LENGTH, "vocab_size": WORDS}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    optimizer, rate = loops.made(what, model.parameters())
    watch = Watch(optimizer, rate)
    arguments = TrainingArguments(
        output_dir=str(folder / what),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=BATCH,
        lr_scheduler_type="constant",  # of the Trainer's own, where no scheduler is handed over
        logging_steps=1,
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model, arguments, train_dataset=Text(), optimizers=(optimizer, rate), callbacks=[watch]
    )
    trainer.train(
        resume_from_checkpoint=str(folder / what / f"checkpoint-{STEPS}")
        if part == "rest"
        else None
    )
    name = "rate" if what == "pursuit" else "learning_rate"
    logged = [line[name] for line in trainer.state.log_history if name in line]
    loops.told(folder, what, part, 0, model, watch.rates, logged)


if __name__ == "__main__":
    main()
