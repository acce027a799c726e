"""The models in NumPy: their gradients, and their twins in torch."""

import numpy as np
import pytest

from driftrate.errors import ConfigError
from driftrate.race.models import Model, errors, losses, make_model

TASKS = {"regression": 1, "binary": 1, "classes": 3}


def problem(task, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    model = Model(task, features=4, outputs=TASKS[task])
    x = rng.standard_normal((rows, 4))
    y = rng.standard_normal(rows)
    if task == "binary":
        y = (y > 0).astype(float)
    if task == "classes":
        y = rng.integers(0, 3, rows)
    theta = 0.5 * rng.standard_normal(model.size)
    return model, theta, x, y


@pytest.mark.parametrize("task", TASKS)
def test_gradients_are_those_of_the_loss(task):
    model, theta, x, y = problem(task)
    loss, gradient = model.gradients(theta, x, y)
    assert loss == pytest.approx(losses(task, model.scores(theta, x), y).mean())
    for i in range(model.size):
        step = np.zeros(model.size)
        step[i] = 1e-6
        up, down = (model.gradients(theta + s, x, y)[0] for s in (step, -step))
        assert gradient[i] == pytest.approx((up - down) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("task", TASKS)
def test_a_pool_and_parts_agree_with_one_by_one(task):
    model, theta, x, y = problem(task)
    pool = np.stack([theta, 2 * theta, -theta])
    scores, loss, parts = model.parts(pool, x, y, parts=4)
    assert parts.shape == (4, 3, model.size)
    for k, member in enumerate(pool):
        np.testing.assert_allclose(scores[k], model.scores(member, x))
        for part in range(4):
            rows = slice(2 * part, 2 * part + 2)
            alone = model.gradients(member, x[rows], y[rows])[1]
            np.testing.assert_allclose(parts[part, k], alone, atol=1e-14)
        np.testing.assert_allclose(loss[k], model.gradients(member, x, y)[0])


@pytest.mark.parametrize("task", TASKS)
def test_the_module_is_the_same_model(task):
    torch = pytest.importorskip("torch", reason="the twin is a torch module")
    from driftrate.race.contestants._module import module, tensors
    from driftrate.race.networks._losses import errors as torch_errors
    from driftrate.race.networks._losses import loss

    model, theta, x, y = problem(task)
    net = module(model, seed=0)
    assert not net.first.any()
    with torch.no_grad():
        net.first.copy_(torch.from_numpy(theta.reshape(net.first.shape)))
    features, target = tensors(task, x, y)
    scores = net(features)
    value = loss(task, scores, target)
    value.backward()
    want, gradient = model.gradients(theta, x, y)
    found = scores.detach().numpy()
    found = found if task == "classes" else found[:, 0]
    np.testing.assert_allclose(found, model.scores(theta, x), rtol=1e-4, atol=1e-5)
    assert float(value.detach()) == pytest.approx(float(want), rel=1e-5)
    each = loss(task, scores.detach(), target, "none").numpy()
    np.testing.assert_allclose(each, losses(task, model.scores(theta, x), y), rtol=1e-4, atol=1e-5)
    wrong = torch_errors(task, scores.detach(), target).double().numpy()
    np.testing.assert_allclose(wrong, errors(task, model.scores(theta, x), y), rtol=1e-4, atol=1e-5)
    flat = net.first.grad.reshape(-1).numpy()
    np.testing.assert_allclose(flat, gradient, rtol=1e-3, atol=1e-5)


def test_losses_and_errors_stay_finite_far_out():
    far = np.array([1e4, -1e4])
    assert losses("binary", far, np.array([0.0, 1.0])).tolist() == [1e4, 1e4]
    scores = np.array([[1e4, 0.0, -1e4]])
    assert losses("classes", scores, np.array([2])).tolist() == [2e4]
    assert errors("classes", scores, np.array([0])).tolist() == [0.0]
    assert errors("regression", far, np.zeros(2)).tolist() == [1e8, 1e8]


@pytest.mark.parametrize(
    ("name", "task", "says"),
    [
        ("tree", "binary", "model must be one of"),
        ("logistic", "classes", "3 classes: use softmax"),
        ("linear", "binary", "two classes: use logistic"),
        ("softmax", "regression", "numbers: use linear"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(name, task, says):
    with pytest.raises(ConfigError, match=says):
        make_model(name, task, features=3, classes=3)
