"""Batches: nothing of the future in them, the oracle's regret, and every kind of specification."""

from types import SimpleNamespace

import numpy as np
import pytest

from driftrate.errors import ConfigError, DataError
from driftrate.race import Reading, _public, resolve, sources
from driftrate.race.models import losses
from driftrate.streams import LinearStream, LogisticStream, spiral


def write(path, x, y):
    head = ",".join([*(f"f{i}" for i in range(x.shape[1])), "y"])
    rows = [
        ",".join(f"{v!r}" for v in [*row, label]) for row, label in zip(x.tolist(), y, strict=True)
    ]
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 3.0, size=(90, 3))
    return x, (x @ [1.0, -1.0, 0.5] + rng.normal(size=90)).tolist()


def batches(path, batch=8):
    reading = Reading(target="y", batch=batch, scale="plain")
    return list(resolve(path, reading).batches())


def test_a_batch_is_standardised_by_the_rows_before_it(tmp_path, rows):
    x, y = rows
    found = batches(write(tmp_path / "a.csv", x, y))
    assert len(found) == 90 // 8 - 1  # the first is looked at alone, the last is not full
    for t, batch in enumerate(found, start=1):
        past, now = slice(0, 8 * t), slice(8 * t, 8 * t + 8)
        z = np.clip((x[now] - x[past].mean(axis=0)) / x[past].std(axis=0), -5, 5)
        np.testing.assert_allclose(batch.x[:, :-1], z, atol=1e-9)
        assert (batch.x[:, -1] == 1.0).all()
        target = np.array(y)
        label = np.clip((target[now] - target[past].mean()) / target[past].std(), -5, 5)
        np.testing.assert_allclose(batch.y, label, atol=1e-9)


def test_a_row_changes_nothing_before_itself_or_beside_itself(tmp_path, rows):
    x, y = rows
    before = batches(write(tmp_path / "a.csv", x, y))
    changed, label = x.copy(), list(y)
    changed[40] = 1e3
    label[40] = -1e3
    after = batches(write(tmp_path / "b.csv", changed, label))
    place = 40 // 8 - 1  # the batch that holds the row
    for one, other in zip(before[:place], after[:place], strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    np.testing.assert_array_equal(before[place].x[1:], after[place].x[1:])
    assert (after[place].x[0, :-1] == 5.0).all()
    assert np.abs(before[place + 1].x - after[place + 1].x).max() > 0.1


def test_tasks_and_models(tmp_path, rows):
    x, _ = rows
    three = write(tmp_path / "three.csv", x, [i % 3 for i in range(90)])
    two = write(tmp_path / "two.csv", x, [i % 2 for i in range(90)])
    source = resolve(three, Reading(target="y", batch=8))
    assert (source.task, source.model, source.classes, source.n_features) == (
        "classes", "softmax", 3, 4,
    )  # fmt: skip
    assert next(source.batches()).y.dtype == np.int64
    assert resolve(two, Reading(target="y", model="auto", batch=8)).model == "logistic"
    assert resolve(two, Reading(target="y", model="softmax", batch=8)).task == "classes"
    assert resolve(two, Reading(target="y", model="linear", batch=8)).task == "regression"
    assert resolve(two, Reading(target="y", model="mlp", batch=8)).task == "binary"
    with pytest.raises(ConfigError, match="3 classes"):
        resolve(three, Reading(target="y", model="logistic", batch=8))


def test_a_file_too_short_for_two_batches(tmp_path, rows):
    x, y = rows
    with pytest.raises(DataError, match="has 90 rows: a race needs two batches, here 128"):
        resolve(write(tmp_path / "a.csv", x, y), Reading(target="y", batch=64))


def test_batches_are_kept_and_an_edited_file_is_another(tmp_path, rows):
    x, y = rows
    path = write(tmp_path / "a.csv", x, y)
    source = resolve(path, Reading(target="y", batch=8))
    same = resolve(path, Reading(target="y", batch=8))
    first, again = list(source.batches()), list(same.batches())
    assert all(one is other for one, other in zip(first, again, strict=True))
    x[5] += 1.0
    write(tmp_path / "a.csv", x, y)
    edited = resolve(path, Reading(target="y", batch=8))
    assert edited.fingerprint != source.fingerprint
    assert (next(edited.batches()).x != first[0].x).any()


def test_the_first_rows_alone(tmp_path, rows):
    path = write(tmp_path / "a.csv", *rows)
    whole, some = (resolve(path, Reading(target="y", batch=8, rows=n)) for n in (None, 50))
    found = list(some.batches())
    assert len(found) == some.steps == 50 // 8 - 1
    for one, other in zip(found, whole.batches(), strict=False):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert len(list(whole.batches())) == whole.steps == 10  # not those that are kept of the other
    more = resolve(path, Reading(target="y", batch=8, rows=10**6))
    assert more.steps == whole.steps
    with pytest.raises(ConfigError, match=r"rows is 15: a race needs two batches, here 16"):
        resolve(path, Reading(target="y", batch=8, rows=15))
    with pytest.raises(ConfigError, match="played whole; leave rows out"):
        resolve("networks:flipping", Reading(rows=100))


def test_batches_of_one(tmp_path, rows):
    source = resolve(write(tmp_path / "a.csv", *rows), Reading(target="y", batch=1))
    found = list(source.batches())
    assert len(found) == source.steps == 89
    assert all(np.isfinite(batch.x).all() and batch.x.shape == (1, 4) for batch in found)


def test_large_streams_are_not_kept(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(sources, "_CACHE_BYTES", 100)
    source = resolve(write(tmp_path / "large.csv", *rows), Reading(target="y", batch=8))
    first, again = list(source.batches()), list(source.batches())
    assert first[0] is not again[0]
    np.testing.assert_array_equal(first[-1].x, again[-1].x)


@pytest.mark.parametrize("loss", ["linear", "logistic"])
def test_regret_given_the_features_is_the_expected_excess_loss(loss):
    steps, dim, noise = 40, 4, 2.0
    spec = f"synthetic:spiral,dim={dim},steps={steps},noise={noise},loss={loss}"
    path = spiral(dim=dim, steps=steps)
    kind = LinearStream if loss == "linear" else LogisticStream
    stream = kind(path, 2000, noise)
    source = resolve(spec, Reading(batch=2000))
    weights = np.array([0.5, -0.5, 1.0, 0.0])
    excess, expected = [], []
    for step, batch in enumerate(source.batches(seed=1)):
        score = batch.x @ weights
        by_row = losses(source.task, score, batch.expected)
        by_row = by_row - losses(source.task, batch.oracle, batch.expected)
        excess.append(by_row)
        expected.append(float(stream.standing(weights, step).regret))
        drawn = losses(source.task, score, batch.y) - losses(source.task, batch.oracle, batch.y)
        assert abs(np.mean(drawn - by_row)) < 5 * np.std(drawn - by_row) / 2000**0.5 + 1e-12
    mean, error = np.mean(excess), np.std(excess) / np.size(excess) ** 0.5
    assert abs(mean - np.mean(expected)) < 4 * error
    assert error < 0.05 * mean  # so that the line above can fail


def test_a_seed_draws_its_own_stream():
    source = resolve("synthetic:walk,dim=2,steps=5", Reading(batch=4))
    one, same, other = (next(source.batches(seed)).x for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).all()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("synthetic:zigzag", "kind must be one of spiral"),
        ("synthetic:spiral,colour=3", "got 'colour=3'"),
        ("synthetic:spiral,dim", "got 'dim'"),
        ("synthetic:spiral,dim=two", "a number in 'dim=two'"),
        ("synthetic:spiral,loss=hinge", "loss must be one of linear, logistic"),
        ("synthetic:spiral,dim=0", "dim must be an integer >= 1"),
    ],
)
def test_bad_synthetic_streams(spec, says):
    with pytest.raises(ConfigError, match=says):
        resolve(spec, Reading(batch=8))


def test_bad_arguments():
    with pytest.raises(ConfigError, match="model must be one of"):
        resolve("synthetic:spiral", Reading(model="tree", batch=8))
    with pytest.raises(ConfigError, match="batch must be an integer >= 1, got 0"):
        resolve("synthetic:spiral", Reading(batch=0))
    with pytest.raises(ConfigError, match="sep are for files"):
        resolve("synthetic:spiral", Reading(target="y", batch=8))
    with pytest.raises(DataError, match="no file at"):
        resolve("nowhere.csv", Reading(target="y", batch=8))


def test_a_bundled_public_dataset():
    pytest.importorskip("river", reason="the dataset comes with it")
    source = resolve("river:Phishing", Reading())
    assert (source.task, source.rows, source.n_features) == ("binary", 1250, 10)
    assert len(list(source.batches())) == source.steps == 77
    assert resolve("river:ChickWeights", Reading()).task == "regression"
    with pytest.raises(ConfigError, match="no dataset 'Nowhere'"):
        resolve("river:Nowhere", Reading())


def test_what_river_would_download_unchecked_is_left_to_the_user(monkeypatch):
    datasets = pytest.importorskip("river.datasets", reason="the dataset is one of its")
    monkeypatch.setattr(datasets.Higgs, "is_downloaded", property(lambda _: False))
    monkeypatch.setattr(datasets.Higgs, "download", lambda *_, **__: pytest.fail("downloaded"))
    with pytest.raises(DataError, match=r"river:Higgs cannot be had.* datasets.Higgs\(\).download"):
        resolve("river:Higgs", Reading())


def test_openml_is_read_and_its_absence_told(monkeypatch):
    module = pytest.importorskip("sklearn.datasets", reason="it does the download")
    _public.openml.cache_clear()
    found = SimpleNamespace(
        data=np.array([[1.0, 0.0], [np.nan, 1.0], [3.0, np.nan]] * 8),
        feature_names=["size", "colour"],
        categories={"colour": ["red", "blue"]},
        target=np.array(["u", "v", "u"] * 8, dtype=object),
        details={"id": "7", "version": "1"},
    )
    monkeypatch.setattr(module, "fetch_openml", lambda *_, **__: found)
    source = resolve("openml:small", Reading(batch=8))
    # size, its absence, red, blue, colour's absence, bias
    assert (source.task, source.n_features, source.fingerprint) == ("binary", 6, "openml-7-1")

    def refuse(*_, **__):
        raise OSError("no network\nat all")

    monkeypatch.setattr(module, "fetch_openml", refuse)
    with pytest.raises(DataError, match=r"openml:other cannot be had: no network; it is downl"):
        resolve("openml:other", Reading(batch=8))

    def unchecked(*_, **__):
        raise KeyError("md5_checksum")

    monkeypatch.setattr(module, "fetch_openml", unchecked)
    with pytest.raises(DataError, match=r"cannot be had: 'md5_checksum'; .* by the checksum"):
        resolve("openml:other", Reading(batch=8))
    _public.openml.cache_clear()


def test_cytometry(monkeypatch, tmp_path):
    pytest.importorskip("scipy", reason="cells are simulated with it")
    monkeypatch.setenv("DRIFTRATE_DATA", str(tmp_path))  # no cells there: simulated ones
    source = resolve("cytometry", Reading())
    assert (source.task, source.classes, source.n_features, source.steps) == ("classes", 4, 11, 599)
    one, other = (next(source.batches(seed)).x for seed in (0, 1))
    assert one.shape == (16, 11)
    assert (one != other).any()
