"""The protocols draw what they say, and the seed decides it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from driftrate.errors import ConfigError, DataError
from driftrate.race.networks import PROTOCOLS, digits, protocol
from driftrate.race.networks.texts import texts

COUNT = 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Digits whose first two pixels tell their number; the last nine are bright, others noise."""
    place = tmp_path_factory.mktemp("data")
    x = np.random.default_rng(0).integers(0, 100, (COUNT, 784)).astype(np.uint8)
    x[:, 0], x[:, 1] = np.arange(COUNT) // 250, np.arange(COUNT) % 250
    x[:, -9:] = 255
    np.savez(place / "digits10k.npz", x=x, y=np.arange(COUNT) % 10)
    return place


@pytest.fixture
def drawn(folder, monkeypatch):
    """Return a function that draws the phases of a protocol."""
    monkeypatch.setenv("DRIFTRATE_DATA", str(folder))
    return lambda name, seed=0: list(protocol(name).draw(seed))


def numbers(x):
    """Return which digits these are, from pixels in their own order."""
    return (np.rint(x[:, 0] * 255) * 250 + np.rint(x[:, 1] * 255)).astype(int)


@pytest.mark.parametrize("rows", [2500, 10_000])
def test_labels_are_permuted_anew(drawn, rows):
    phases = drawn(f"labels_{rows}")
    assert len(phases) == {2500: 20, 10_000: 6}[rows]
    assert protocol(f"labels_{rows}").rows == sum(len(phase.y) for phase in phases)
    maps = set()
    for phase in phases:
        which = numbers(phase.x)
        assert len(set(which)) == rows
        told = {(int(a), int(b)) for a, b in zip(which % 10, phase.y, strict=True)}
        assert len(told) == len({b for _, b in told}) == 10
        maps.add(tuple(sorted(told)))
    assert len(maps) == len(phases)


def test_pixels_are_permuted_anew(drawn):
    first, second = drawn("pixels_2500")[:2]
    bright = [np.flatnonzero((phase.x == 1.0).all(axis=0)) for phase in (first, second)]
    assert [len(places) for places in bright] == [9, 9]
    assert set(bright[0]) != set(bright[1])
    assert (np.bincount(first.y) > 200).all()


def test_the_seed_decides(drawn):
    one, again, other = (drawn("pixels_2500", seed)[3] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.x, again.x)
    assert (one.y != other.y).any()


@pytest.mark.parametrize("change", digits.CHANGES)
def test_a_rest_is_one_pass_of_distinct_digits(drawn, change):
    rest, unseen, *after = drawn(f"rest_{change}")
    seen = set(numbers(rest.x))
    assert (rest.name, len(seen)) == ("rest", 8000)
    assert (unseen.name, unseen.learn) == ("held out", False)
    assert seen | set(numbers(unseen.x)) == set(range(COUNT))
    assert [phase.name for phase in after] == ["after"] * 6
    assert {len(phase.y) for phase in after} == {2500}
    assert protocol(f"rest_{change}").rows == 8000 + 15_000
    whole = drawn("rest_labels")[0]
    np.testing.assert_array_equal(rest.x, whole.x)  # the same rest whatever comes after


def test_an_old_task_comes_back(drawn):
    after = drawn("rest_return")[2:]
    back = [bool((phase.x[:, -9:] == 1.0).all()) for phase in after]
    assert back == [False, True] * 3
    bright = {tuple(np.flatnonzero((phase.x == 1.0).all(axis=0))) for phase in after[::2]}
    assert len(bright) == 1


def test_pixels_wander(drawn):
    first, second = drawn("rest_gradual")[2:4]
    assert (first.x[0, -9:] == 1.0).all()
    left = (first.x[:, -9:] == 1.0).sum(axis=1)
    assert (np.diff(left) <= 1).all()  # a place of nine may be taken by another bright one
    assert left[-1] < 5
    # The next task sets out where this one ended.
    ended = np.flatnonzero(first.x[-1] == 1.0)
    assert np.isin(ended, np.flatnonzero(second.x[0] == 1.0)).all()


def test_noise_is_short(drawn):
    phase = drawn("rest_noise")[2]
    wrong = phase.y != numbers(phase.x) % 10
    assert 150 < wrong[:200].sum() < 200
    assert not wrong[200:].any()


def test_long_streams(drawn):
    lasting = protocol("plasticity")
    assert lasting.rows == 200 * 2500
    names = {phase.name for phase, _ in zip(lasting.draw(0), range(41), strict=False)}
    assert names == {"tasks 1 to 20", "tasks 21 to 40", "tasks 41 to 60"}
    assert lasting.figures == ("tasks 21 to 40", "tasks 181 to 200")
    still = list(protocol("stationary").draw(0))
    assert [len(phase.y) for phase in still] == [8000] * 30 + [2000]
    assert protocol("stationary").rows == 240_000
    assert set(numbers(still[0].x)) == set(numbers(still[29].x))
    assert not set(numbers(still[0].x)) & set(numbers(still[30].x))
    assert (still[0].y != still[1].y).any()


def test_all_digits_are_downloaded(monkeypatch):
    x, y = np.zeros((70_000, 784), np.float32), np.arange(70_000) % 10
    monkeypatch.setattr(digits, "_download", lambda: (x, y))
    found = protocol("full_rest_pixels")
    rest, unseen, *after = found.draw(0)
    assert (len(rest.y), len(unseen.y), len(after)) == (60_000, 10_000, 6)
    assert found.rows == 60_000 + 15_000


def test_all_digits_are_those_of_one_checksum(monkeypatch):
    module = pytest.importorskip("sklearn.datasets", reason="it does the download")
    found = SimpleNamespace(data=np.zeros((1, 784)), target=np.array(["7"]))
    monkeypatch.setattr(module, "fetch_openml", lambda *_, **__: found)
    digits._download.cache_clear()
    found.details = {"md5_checksum": digits._MD5}
    assert digits._download()[1] == [7]
    digits._download.cache_clear()
    found.details = {"md5_checksum": "0" * 32}
    with pytest.raises(DataError, match="is not the file it was"):
        digits._download()


def test_bits_flip_one_at_a_time():
    phases = list(protocol("flipping").draw(3))
    assert (len(phases), phases[0].x.shape) == (20, (2500, 21))
    slow = np.stack([phase.x[0, :15] for phase in phases])
    for phase, bits in zip(phases, slow, strict=True):
        assert (phase.x[:, :15] == bits).all()
        assert (phase.x[:, 20] == 1.0).all()
        assert len(np.unique(phase.x[:, 15:20], axis=0)) == 32
        assert (phase.y == np.rint(phase.y)).all()
    assert (np.abs(np.diff(slow, axis=0)).sum(axis=1) == 1.0).all()
    # One target for all: equal rows have equal targets, whenever they come.
    seen = {}
    for phase in phases:
        for row, y in zip(phase.x, phase.y, strict=True):
            assert seen.setdefault(row.tobytes(), y) == y
    assert len(set(seen.values())) > 3


def test_texts_are_read_once_in_order(tmp_path):
    for name, size in (("a.txt", 3000), ("b.txt", 7000)):
        (tmp_path / name).write_bytes(bytes(k % 251 for k in range(size)))
    found = texts(tmp_path)
    assert found.rows == 64  # 9,999 bytes that have a next one
    first, second = found.draw(0)
    assert (first.name, second.name) == ("first half", "second half")
    whole = np.concatenate([first.x, second.x]).reshape(-1)
    after = np.concatenate([first.y, second.y]).reshape(-1)
    np.testing.assert_array_equal(whole[1:], after[:-1])
    assert whole[:3000].tolist() == [k % 251 for k in range(3000)]
    assert (first.x.shape, second.x.shape) == ((32, 128), (32, 128))


def test_languages_are_chosen_by_their_turn(tmp_path):
    pieces = np.repeat(np.arange(6, dtype=np.uint8), 5000)
    np.savez(tmp_path / "t.npz", text=pieces, segment=5000, order=["en", "fr", "py"])
    chosen = texts(tmp_path / "t.npz", ("en", "py"))
    assert {int(b) for phase in chosen.draw(0) for b in np.unique(phase.x)} == {0, 2, 3, 5}
    assert chosen.fingerprint != texts(tmp_path / "t.npz").fingerprint


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTRATE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="digits10k"):
        protocol("labels_2500")
    with pytest.raises(DataError, match="cannot be read as texts"):
        texts(tmp_path / "none.npz")
    (tmp_path / "short.txt").write_bytes(b"short")
    with pytest.raises(DataError, match="5 bytes of text: a race needs two batches"):
        texts(tmp_path)
    with pytest.raises(ConfigError, match="one of pixels_2500"):
        protocol("pixel")
    assert len(PROTOCOLS) == 19


def test_a_text_that_is_edited_is_read_again(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a" * 2**20)
    stat, first = path.stat(), texts(tmp_path)
    path.write_text("b" * 2**20)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert texts(tmp_path).fingerprint != first.fingerprint
