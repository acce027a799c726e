"""The store: whole after a kill, shared by processes, plain about a full disk or a lock."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from driftrate.errors import DataError
from driftrate.race import store as room
from driftrate.race.cell import Cell, without_result
from driftrate.race.store import CellStore


def cell(seed=0):
    return Cell("a.csv", "sgd", "default", seed, "ab12", target="y", model="linear")


def result(status="ok", **changes):
    return {**without_result(status, ""), "loss": 0.1 + 0.2, "loss_curve": [1e-17], **changes}


@pytest.fixture
def place(tmp_path):
    return tmp_path / "race.sqlite"


@pytest.fixture
def store(place):
    with CellStore(place, patience=0.2) as opened:
        yield opened


class TestResults:
    def test_come_back_bit_by_bit_after_a_restart(self, place):
        with CellStore(place) as one:
            one.put(cell(), result())
        with CellStore(place) as two:
            assert two.get(cell()) == result()
            assert two.get(cell(seed=1)) is None

    @pytest.mark.parametrize("status", ["failed", "not played"])
    def test_a_failed_cell_is_played_again(self, store, status):
        store.put(cell(), result(status))
        assert store.get(cell()) is None
        assert store.claim(cell())
        store.put(cell(), result())
        assert store.get(cell()) == result()

    def test_a_timeout_counts_until_the_limit_is_raised(self, store):
        store.put(cell(), result("timeout"), limit=10.0)
        assert store.get(cell(), limit=10.0) is not None
        assert store.get(cell(), limit=5.0) is not None
        assert store.get(cell(), limit=11.0) is None
        assert store.get(cell()) is None
        store.put(cell(), result("timeout"))
        assert store.get(cell()) is not None

    def test_threads_take_turns(self, store):
        cells = [cell(seed) for seed in range(40)]
        threads = [
            threading.Thread(target=lambda part=part: [store.put(one, result()) for one in part])
            for part in (cells[:20], cells[20:])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(store.get(one) for one in cells)


class TestClaims:
    def test_one_process_at_a_time(self, store, place):
        with CellStore(place) as other:
            assert store.claim(cell())
            assert store.claim(cell())
            assert not other.claim(cell())
            assert other.claim(cell(seed=1))

    def test_a_finished_cell_is_nobodys(self, store, place):
        with CellStore(place) as other:
            store.claim(cell())
            store.put(cell(), result())
            assert not other.claim(cell())
            assert not store.claim(cell())

    def test_closing_lets_go(self, store, place):
        with CellStore(place) as other:
            other.claim(cell())
        assert store.claim(cell())

    def test_a_killed_process_lets_go(self, store, place):
        script = (
            "import os, signal, sys; from pathlib import Path;"
            "from driftrate.race.cell import Cell; from driftrate.race.store import CellStore;"
            "CellStore(Path(sys.argv[1])).claim(Cell(**eval(sys.argv[2])));"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        fields = vars(cell())
        call = [sys.executable, "-c", script, str(place), repr(fields)]
        assert subprocess.run(call, check=False).returncode == -signal.SIGKILL
        row = store._base.execute("SELECT pid FROM claims").fetchone()
        assert row is not None
        assert row[0] != os.getpid()
        assert store.claim(cell())

    def test_a_suspended_process_loses_its_claim(self, store, place, monkeypatch):
        """It is there, but has not renewed its claim."""
        with CellStore(place) as other:
            other.claim(cell())
            now = room.time()
            monkeypatch.setattr(room, "time", lambda: now + room.STALE_SECONDS - 1)
            assert not store.claim(cell())
            monkeypatch.setattr(room, "time", lambda: now + room.STALE_SECONDS + 1)
            assert store.claim(cell())

    @pytest.mark.parametrize(
        ("field", "value"),
        [("beat", 1e12), ("beat", "soon"), ("pid", "me"), ("pid", 2**60)],
    )
    def test_one_that_somebody_edited_holds_no_cell(self, store, place, field, value):
        with CellStore(place) as other:
            other.claim(cell())
            if field == "beat":  # of another machine, whose processes cannot be asked for
                store._base.execute("UPDATE claims SET host = 'elsewhere'")
            store._base.execute(f"UPDATE claims SET {field} = ?", (value,))
            assert store.claim(cell())

    def test_claims_are_renewed(self, place, monkeypatch):
        monkeypatch.setattr(room, "BEAT_SECONDS", 0.01)
        with CellStore(place) as store:
            store.claim(cell())
            ((first,),) = store._base.execute("SELECT beat FROM claims").fetchall()
            renewed = threading.Event()
            for _ in range(500):
                ((beat,),) = store._base.execute("SELECT beat FROM claims").fetchall()
                if beat > first:
                    break
                renewed.wait(0.01)
            assert beat > first


class TestFaults:
    def test_full_disk(self, store, place):
        store.put(cell(0), result())
        (pages,) = store._base.execute("PRAGMA page_count").fetchone()
        store._base.execute(f"PRAGMA max_page_count = {pages}")
        large = result(loss_curve=[1.0 / 3] * 20_000)
        with pytest.raises(DataError, match="the disk is full; free some space") as caught:
            store.put(cell(1), large)
        assert "\n" not in str(caught.value)
        assert store.get(cell(0)) == result()
        assert store.get(cell(1)) is None
        assert store._base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store._base.execute(f"PRAGMA max_page_count = {pages + 1000}")
        store.put(cell(1), large)
        assert store.get(cell(1)) == large

    def test_locked(self, store, place):
        other = sqlite3.connect(place, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        for blocked in (
            lambda: store.put(cell(), result()),
            lambda: store.claim(cell()),
            lambda: store.get(cell()),
            lambda: CellStore(place, patience=0.1),
        ):
            with pytest.raises(DataError, match="another program holds it locked"):
                blocked()
        other.execute("ROLLBACK")
        other.close()
        store.put(cell(), result())
        assert store.get(cell()) == result()

    def test_not_a_store(self, place):
        place.write_text("something else " * 100)
        with pytest.raises(DataError, match="it is not a store of race results"):
            CellStore(place)
        assert place.read_text() == "something else " * 100

    @pytest.mark.parametrize("layout", [0, 1, 7])
    def test_another_programs_database_is_left_as_it_is(self, place, layout):
        base = sqlite3.connect(place)
        base.execute("CREATE TABLE bookmarks (address TEXT)")
        base.execute(f"PRAGMA user_version = {layout}")
        base.close()
        before = place.read_bytes()
        with pytest.raises(DataError, match="it is not a store of race results; choose --out"):
            CellStore(place)
        assert place.read_bytes() == before

    def test_other_columns(self, place):
        base = sqlite3.connect(place)
        base.execute("CREATE TABLE results (name TEXT)")
        base.execute("CREATE TABLE claims (name TEXT)")
        base.execute("PRAGMA user_version = 1")
        base.close()
        with (
            CellStore(place) as store,
            pytest.raises(DataError, match="it is not a store of race results"),
        ):
            store.get(cell())

    @pytest.mark.parametrize(
        "damaged",
        [
            "", "{", "[]", "null", "3", "{}", b"\xff\xfe\x00", json.dumps(result())[:-20],
            json.dumps({**result(), "status": "0k"}), json.dumps({**result(), "steps": "3"}),
            json.dumps({**result(), "loss_curve": [None]}),
            json.dumps({**result(), "loss": [1.0]}), json.dumps({**result(), "rate_curve": 1.0}),
            json.dumps({**result(), "loss": 10**400}), json.dumps({**result(), "steps": True}),
            json.dumps({**result(), "curve_steps": [0]}), json.dumps({**result(), "steps": 2**63}),
            json.dumps({**result(), "curve_steps": [2, 1]}), "[" * 100_000,
        ],
    )  # fmt: skip
    def test_a_damaged_row_is_dropped_and_played_again(self, store, damaged):
        store.put(cell(0), result())
        store.put(cell(1), result())
        store._base.execute("UPDATE results SET result = ? WHERE key = ?", (damaged, cell(1).key()))
        assert store.get(cell(1)) is None
        assert store.dropped == 1
        assert store.get(cell(0)) == result()
        assert store.claim(cell(1))
        store.put(cell(1), result())
        assert store.get(cell(1)) == result()
        assert store.dropped == 1

    def test_a_digit_that_flips_is_seen(self, store):
        store.put(cell(), result(loss=0.25))
        store._base.execute("UPDATE results SET result = replace(result, '0.25', '0.35')")
        assert store.get(cell()) is None
        assert store.dropped == 1

    def test_a_row_of_the_first_version_has_no_checksum(self, store):
        store.put(cell(), result())
        store._base.execute("UPDATE results SET result = ?", (json.dumps(result()),))
        assert store.get(cell()) == result()

    def test_a_damaged_name_of_a_table(self, place):
        CellStore(place).close()
        place.write_bytes(place.read_bytes().replace(b"tableclaimsclaims", b"tableclaimsclaim\xff"))
        with pytest.raises(DataError, match=r"it is damaged; move it away"):
            CellStore(place)

    def test_damaged_pages(self, place):
        with CellStore(place) as one:
            for seed in range(40):
                one.put(cell(seed), result(loss_curve=[1 / 3] * 200))
        data = bytearray(place.read_bytes())
        data[4096:] = os.urandom(len(data) - 4096)
        place.write_bytes(data)
        with (
            pytest.raises(DataError, match=r"it is damaged; move it away"),
            CellStore(place) as one,
        ):
            one.get(cell())

    def test_of_a_later_version(self, place):
        base = sqlite3.connect(place)
        base.execute("PRAGMA user_version = 99")
        base.close()
        with pytest.raises(DataError, match="has layout 99, this driftrate knows 1"):
            CellStore(place)

    def test_unwritable_folder(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(DataError, match="cannot write to"):
            CellStore(tmp_path / "file" / "race.sqlite")
