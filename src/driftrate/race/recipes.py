"""The lines to copy: what was raced, in the loop that a user has."""

from __future__ import annotations

from typing import NamedTuple

from driftrate.race.leaderboard import Leaderboard, Row

LOOPS = {
    "torch": "PyTorch",
    "optax": "Optax",
    "keras": "Keras",
    "river": "River",
    "sklearn": "scikit-learn",
    "numpy": "NumPy",
}
# The mean loss of a batch as the race takes it: with another factor a rate means another step.
_TORCH_LOSS = {
    "regression": "0.5 * torch.nn.functional.mse_loss(model(x)[:, 0], y)",
    "binary": "torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)",
    "classes": "torch.nn.functional.cross_entropy(model(x), y)",
}
_POOL_LOSS = {"regression": "squared", "binary": "binary", "classes": "cross_entropy"}
_KERAS_LOSS = {
    "regression": "lambda y, p: 0.5 * keras.losses.mean_squared_error(y, p)",
    "binary": "keras.losses.BinaryCrossentropy(from_logits=True)",
    "classes": "keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
}
_OPTAX_LOSS = {
    "regression": "squared_error(score, y) / 2",
    "binary": "sigmoid_binary_cross_entropy(score, y)",
    "classes": "softmax_cross_entropy_with_integer_labels(scores, y)",
}
_RIVER_MODEL = {
    "regression": "linear_model.LinearRegression({}, intercept_lr=0.0)",
    "binary": "linear_model.LogisticRegression({}, intercept_lr=0.0)",
    "classes": "linear_model.SoftmaxRegression({})",
}


class Lines(NamedTuple):
    """The lines for one loop.

    Args:
        row: What they take: the winner, or the best of what the loop has.
        code: The lines.
    """

    row: Row
    code: str


def recipes(
    board: Leaderboard, stream: str, task: str, model: str, batch: int
) -> dict[str, Lines | None]:
    """Return for each loop the lines of the best method at its default that it has.

    Args:
        board: The results.
        stream: The stream.
        task: What is predicted there.
        model: The name of the model.
        batch: The rows of a batch.

    Returns:
        By the key of `LOOPS`; None where nothing that came through has a form in the loop.
    """
    fine = [row for row in board.of(stream) if row.status == "ok"]
    found: dict[str, Lines | None] = {}
    for loop in LOOPS:
        codes = ((row, _code(loop, row.method, task, model, batch)) for row in fine)
        found[loop] = next((Lines(row, code) for row, code in codes if code), None)
    return found


def _code(loop: str, method: str, task: str, model: str, batch: int) -> str | None:
    """Return the lines of a method in a loop, None if it has none there."""
    if loop == "torch":
        return _torch(method, task)
    if loop == "optax":
        return _optax(method, task, batch)
    if loop == "keras":
        return _keras(method, task, batch)
    if model == "mlp":
        return None
    if loop == "river":
        return _river(method, task)
    return _sklearn(method, task) if loop == "sklearn" else _numpy(method, task)


def _plain(package: str, call: str) -> tuple[str, ...]:
    return (f"import {package}", f"optimizer = {package}.{call}")


_SCHEDULER = "scheduler = torch.optim.lr_scheduler"
# What makes the optimizer; a `scheduler`, if one is made, moves on after each step.
_TORCH: dict[str, tuple[str, ...]] = {
    "sgd": ("optimizer = torch.optim.SGD(model.parameters(), lr=0.001)",),
    "sgd 1/t": (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.3)",
        f"{_SCHEDULER}.LambdaLR(optimizer, lambda t: 1 / (t + 1))",
    ),
    "sgd 1/sqrt(t)": (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.3)",
        f"{_SCHEDULER}.LambdaLR(optimizer, lambda t: (t + 1) ** -0.5)",
    ),
    "sgd cosine restarts": (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        f"{_SCHEDULER}.CosineAnnealingWarmRestarts(optimizer, T_0=100)",
    ),
    "adam": ("optimizer = torch.optim.Adam(model.parameters())",),
    "adamw": ("optimizer = torch.optim.AdamW(model.parameters())",),
    "amsgrad": ("optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)",),
    "adagrad": ("optimizer = torch.optim.Adagrad(model.parameters())",),
    "prodigy": _plain("prodigyopt", "Prodigy(model.parameters())"),
    "d-adapt sgd": _plain("dadaptation", "DAdaptSGD(model.parameters())"),
    "d-adapt adam": _plain("dadaptation", "DAdaptAdam(model.parameters())"),
    "dog": _plain("dog", "DoG(model.parameters())"),
    "cocob": _plain("parameterfree", "COCOB(model.parameters())"),
    "trac": (
        "import os",
        "from trac_optimizer import start_trac",
        "optimizer = start_trac(os.devnull, torch.optim.Adam)(model.parameters())",
    ),
    "mechanic sgd": (
        "from mechanic_pytorch import mechanize",
        "optimizer = mechanize(torch.optim.SGD)(model.parameters(), lr=1.0)",
    ),
    "mechanic adamw": (
        "from mechanic_pytorch import mechanize",
        "optimizer = mechanize(torch.optim.AdamW)(model.parameters(), lr=1.0)",
    ),
    "momo": _plain("momo", "Momo(model.parameters())"),
    "momo adam": _plain("momo", "MomoAdam(model.parameters())"),
    "MeasuredRate": (
        "import driftrate as dr",
        "import driftrate.torch",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "rate = driftrate.torch.attach(optimizer, dr.MeasuredRate())",
    ),
    "MeasuredRate on sgd": (
        "import driftrate as dr",
        "import driftrate.torch",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.001)",
        "rate = driftrate.torch.attach(optimizer, dr.MeasuredRate())",
    ),
    "MeasuredRate on adam": (
        "import driftrate as dr",
        "import driftrate.torch",
        "optimizer = torch.optim.Adam(model.parameters())",
        "rate = driftrate.torch.attach(optimizer, dr.MeasuredRate())",
    ),
    "Pursuit": (
        "import driftrate.torch",
        "optimizer = driftrate.torch.Pursuit(model.parameters())",
    ),
}


def _torch(method: str, task: str) -> str | None:
    if method == "Hedged":
        return _block(
            "import driftrate.torch",
            f'pool = driftrate.torch.Hedged(model, loss="{_POOL_LOSS[task]}")',
            loop=("forecast = pool(x)", "pool.learn(x, y)"),
        )
    if method not in _TORCH:
        return None
    heads = sorted(_TORCH[method], key=lambda line: not line.startswith(("import ", "from ")))
    step = "optimizer.step(loss=loss)" if method.startswith("momo") else "optimizer.step()"
    loop = ["optimizer.zero_grad()", f"loss = {_TORCH_LOSS[task]}", "loss.backward()", step]
    if any(line.startswith("scheduler") for line in heads):
        loop.append("scheduler.step()")
    return _block("import torch", *heads, loop=loop)


_OPTAX = {
    "sgd": "optax.sgd(0.001)",
    "adam": "optax.adam(0.001)",
    "adamw": "optax.adamw(0.001, weight_decay=0.01)",
    "adagrad": "optax.adagrad(0.01, initial_accumulator_value=0.0, eps=1e-10)",
    "MeasuredRate": "driftrate.optax.attach(optax.sgd(0.1), dr.MeasuredRate(), batch_size={})",
    "MeasuredRate on sgd": "driftrate.optax.attach(optax.sgd(0.001), dr.MeasuredRate(), "
    "batch_size={})",
    "MeasuredRate on adam": "driftrate.optax.attach(optax.adam(0.001), dr.MeasuredRate(), "
    "batch_size={})",
    "Pursuit": "driftrate.optax.pursuit()",
}


def _optax(method: str, task: str, batch: int) -> str | None:
    if method not in _OPTAX:
        return None
    return _block(
        "import jax",
        "import optax",
        *_doors(_OPTAX[method], "optax"),
        f"# loss(params, x, y): the mean of optax.{_OPTAX_LOSS[task]}",
        f"optimizer = {_OPTAX[method].format(batch)}",
        "state = optimizer.init(params)",
        loop=(
            "updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)",
            "params = optax.apply_updates(params, updates)",
        ),
    )


_KERAS = {
    "sgd": "keras.optimizers.SGD(0.001)",
    "adam": "keras.optimizers.Adam(0.001, epsilon=1e-8)",
    "adamw": "keras.optimizers.AdamW(0.001, weight_decay=0.01, epsilon=1e-8)",
    "adagrad": "keras.optimizers.Adagrad(0.01, initial_accumulator_value=0.0, epsilon=1e-10)",
    "MeasuredRate": "driftrate.keras.attach(keras.optimizers.SGD(0.1), dr.MeasuredRate(), "
    "batch_size={})",
    "MeasuredRate on sgd": "driftrate.keras.attach(keras.optimizers.SGD(0.001), "
    "dr.MeasuredRate(), batch_size={})",
    "MeasuredRate on adam": "driftrate.keras.attach(keras.optimizers.Adam(0.001), "
    "dr.MeasuredRate(), batch_size={})",
    "Pursuit": "driftrate.keras.Pursuit()",
}


def _keras(method: str, task: str, batch: int) -> str | None:
    if method not in _KERAS:
        return None
    return _block(
        "import keras",
        *_doors(_KERAS[method], "keras"),
        f"optimizer = {_KERAS[method].format(batch)}",
        f"loss = {_KERAS_LOSS[task]}",
        "model.compile(optimizer, loss=loss)",
        loop=("model.train_on_batch(x, y)",),
    )


_RIVER = {
    "river linear": "optim.SGD(0.01)",
    "ftrl proximal": "optim.FTRLProximal()",
}


def _river(method: str, task: str) -> str | None:
    kind = "Regressor" if task == "regression" else "Classifier"
    ask = "predict_one" if task == "regression" else "predict_proba_one"
    loop = (f"forecast = model.{ask}(x)", "model.learn_one(x, y)")
    if method == "HedgedFilter":
        head = ("import driftrate.river", f"model = driftrate.river.Shift{kind}()")
        return _block(*head, loop=loop, over="samples")
    if method == "bayesian regression":
        head = ("from river import linear_model", "model = linear_model.BayesianLinearRegression()")
        return _block(*head, loop=loop, over="samples")
    if method not in _RIVER:
        return None
    made = f"model = {_RIVER_MODEL[task].format(_RIVER[method])}"
    ones = '# features of similar size, and one that is always 1, as x["one"] = 1.0'
    return _block("from river import linear_model, optim", made, ones, loop=loop, over="samples")


def _sklearn(method: str, task: str) -> str | None:
    made = {"HedgedFilter": "", "HedgedSGD": "schedule=dr.HedgedSGD()"}.get(method)
    if made is None:
        return None
    numbers = task == "regression"
    kind, ask = ("Regressor", "predict") if numbers else ("Classifier", "predict_proba")
    head = ["import driftrate as dr"] if made else []
    head += [f"from driftrate.sklearn import Shift{kind}", f"model = Shift{kind}({made})"]
    learn = "partial_fit(x, y)" if numbers else "partial_fit(x, y, classes=classes)"
    # An estimator forecasts once it has learned.
    loop = ('if hasattr(model, "coef_"):', f"    forecast = model.{ask}(x)", f"model.{learn}")
    return _block(*head, loop=loop)


def _numpy(method: str, task: str) -> str | None:
    if method != "HedgedFilter":
        return None
    classes = {"regression": "", "binary": ", classes=2", "classes": ", classes=classes"}[task]
    return _block(
        "import driftrate as dr",
        "pool = dr.HedgedFilter()",
        f"state = pool.init(dim{classes})  # features of similar size, one of them always 1",
        loop=("forecast = pool.predict(state, x)", "state = pool.update(state, x, y)"),
    )


def _doors(call: str, room: str) -> list[str]:
    """Return what else must be imported for a call."""
    doors = ["import driftrate as dr"] if "dr." in call.replace("driftrate.", "") else []
    return [*doors, f"import driftrate.{room}"] if "driftrate." in call else []


def _block(*head: str, loop: tuple[str, ...] | list[str], over: str = "batches") -> str:
    """Return the lines: imports, an empty line, what is made, and the loop."""
    cut = sum(line.startswith(("import ", "from ")) for line in head)
    made = [*head[:cut], "", *head[cut:]]
    return "\n".join([*made, f"for x, y in {over}:", *(f"    {line}" for line in loop)])
