"""Entries are taken whole and as they were put, or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import kartosql
from kartosql import user_cache
from kartosql.errors import SqlError, UsageError
from kartosql.settings import Settings
from kartosql.user_cache import UserCache, cache_folder

BUFFERS = [b"first", b"", bytes(range(256)) * 300, memoryview(b"last")]


@pytest.fixture
def cache(tmp_path) -> UserCache:
    return UserCache(str(tmp_path / "cache"))


def found(cache: UserCache, *identity: str, kind: str = "k1") -> list[bytes] | None:
    views = cache.get(kind, identity)
    return None if views is None else [bytes(v) for v in views]


def entry(cache: UserCache) -> Path:
    (path,) = Path(str(cache.folder)).iterdir()
    return path


def test_buffers_come_back_as_they_were_put_and_cannot_be_written(cache):
    assert cache.get("k1", ["a"]) is None
    cache.put("k1", ["a"], BUFFERS)
    assert found(cache, "a") == [bytes(b) for b in BUFFERS]
    views = cache.get("k1", ["a"])
    assert all(v.readonly for v in views)
    assert found(UserCache(cache.folder), "a") == [bytes(b) for b in BUFFERS]


def test_no_buffers_are_an_entry_too(cache):
    cache.put("k1", ["a"], [])
    assert found(cache, "a") == []


@pytest.mark.parametrize(
    ("kind", "identity"),
    [("k1", ["b"]), ("k2", ["a", "b"]), ("k1", ["a", "b", ""]), ("k1", ["ab"]), ("k1", ["b", "a"]), ("k1", [b"a"])],
)
def test_another_kind_or_identity_is_another_entry(cache, kind, identity):
    cache.put("k1", ["a", "b"], BUFFERS)
    assert cache.get(kind, identity) is None


def test_an_identity_may_hold_any_text(cache):
    for text in ("/a/../b", "\0", "\ud800", "ä" * 5000):
        cache.put("k1", [text], [text.encode("utf-8", "surrogatepass")])
    for text in ("/a/../b", "\0", "\ud800", "ä" * 5000):
        assert found(cache, text) == [text.encode("utf-8", "surrogatepass")]


def test_other_versions_have_entries_of_their_own(cache, monkeypatch):
    cache.put("k1", ["a"], BUFFERS)
    monkeypatch.setattr(user_cache, "VERSION", "0.0.0")
    assert cache.get("k1", ["a"]) is None


def test_a_file_under_the_name_of_another_entry_is_not_taken(cache):
    cache.put("k1", ["a"], BUFFERS)
    first = entry(cache)
    cache.put("k1", ["b"], [b"other"])
    (second,) = set(first.parent.iterdir()) - {first}
    os.replace(second, first)
    assert cache.get("k1", ["a"]) is None


def test_every_truncated_or_longer_file_is_refused(cache):
    cache.put("k1", ["a"], [b"first", b"second"])
    path = entry(cache)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert cache.get("k1", ["a"]) is None, size
    path.write_bytes(data + b"\0" * 64)
    assert cache.get("k1", ["a"]) is None
    path.write_bytes(data)
    assert found(cache, "a") == [b"first", b"second"]


def test_every_flipped_bit_of_the_head_is_refused(cache):
    cache.put("k1", ["a"], [b"first", b"second"])
    path = entry(cache)
    data = path.read_bytes()
    head = user_cache._HEAD.size + 2 * 8 + user_cache._CHECKSUM_BYTES
    for at in range(head):
        for bit in range(8):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            assert cache.get("k1", ["a"]) is None, (at, bit)


def test_every_flipped_bit_of_a_small_entry_is_refused(cache):
    cache.put("k1", ["a"], [b"first", b"second"])
    path = entry(cache)
    data = path.read_bytes()
    padding = 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        if found(cache, "a") is not None:
            assert (data[at], found(cache, "a")) == (0, [b"first", b"second"])
            padding += 1
    assert padding < len(data) - user_cache._HEAD.size


def test_the_folder_and_its_files_are_the_users_alone(cache):
    old = os.umask(0)
    try:
        cache.put("k1", ["a"], BUFFERS)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(cache.folder).st_mode) == 0o700
    assert stat.S_IMODE(entry(cache).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_no_cache(cache, mode):
    cache.put("k1", ["a"], BUFFERS)
    os.chmod(cache.folder, mode)
    assert cache.get("k1", ["a"]) is None
    cache.put("k1", ["b"], BUFFERS)
    os.chmod(cache.folder, 0o700)
    assert cache.get("k1", ["b"]) is None
    assert found(cache, "a") is not None


def test_a_folder_or_file_of_somebody_else_is_not_used(cache, monkeypatch):
    cache.put("k1", ["a"], BUFFERS)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert cache.get("k1", ["a"]) is None
    cache.put("k1", ["b"], BUFFERS)
    monkeypatch.undo()
    assert cache.get("k1", ["b"]) is None
    if mine == 0:
        os.chown(entry(cache), 12345, -1)
        assert cache.get("k1", ["a"]) is None


def test_links_are_not_followed(cache, tmp_path):
    cache.put("k1", ["a"], BUFFERS)
    path = entry(cache)
    moved = tmp_path / "moved"
    path.rename(moved)
    path.symlink_to(moved)
    assert cache.get("k1", ["a"]) is None
    path.unlink()
    moved.rename(path)
    link = tmp_path / "link"
    link.symlink_to(cache.folder)
    linked = UserCache(str(link))
    assert linked.get("k1", ["a"]) is None
    linked.put("k1", ["b"], BUFFERS)
    assert cache.get("k1", ["b"]) is None


def test_what_is_no_file_is_no_entry(cache):
    cache.put("k1", ["a"], BUFFERS)
    path = entry(cache)
    path.unlink()
    os.mkfifo(path)
    assert cache.get("k1", ["a"]) is None
    path.unlink()
    path.mkdir()
    assert cache.get("k1", ["a"]) is None
    cache.put("k1", ["a"], BUFFERS)  # which is no error
    assert cache.get("k1", ["a"]) is None


def test_the_entries_used_longest_ago_go_first(tmp_path):
    cache = UserCache(str(tmp_path / "cache"), max_bytes=100_000)
    for name in "abcd":
        cache.put("k1", [name], [bytes(20_000)])
    for place, path in enumerate(sorted(entry.path for entry in os.scandir(cache.folder))):
        os.utime(path, (1000 + place, 1000 + place))
    assert cache.get("k1", ["a"]) is not None  # used now
    cache.put("k1", ["e"], [bytes(45_000)])
    assert sum(e.stat().st_size for e in os.scandir(cache.folder)) <= 100_000
    assert cache.get("k1", ["a"]) is not None
    assert cache.get("k1", ["e"]) is not None
    assert sum(cache.get("k1", [name]) is not None for name in "bcd") == 1


def test_what_is_too_large_is_not_kept_and_drops_nothing(tmp_path):
    cache = UserCache(str(tmp_path / "cache"), max_bytes=10_000)
    cache.put("k1", ["a"], [b"small"])
    cache.put("k1", ["b"], [bytes(9_000)])
    cache.put("k1", ["c"], [b""] * 20_000)
    assert (found(cache, "a"), cache.get("k1", ["b"]), cache.get("k1", ["c"])) == ([b"small"], None, None)


def test_evicting_removes_abandoned_parts_and_nothing_of_others(tmp_path):
    cache = UserCache(str(tmp_path / "cache"), max_bytes=10_000)
    cache.put("k1", ["a"], [b"small"])
    folder = Path(str(cache.folder))
    for name in ("k1-1.kartosql-part", "letters.doc", "new.kartosql-part"):
        (folder / name).write_bytes(bytes(9_000 if name == "letters.doc" else 10))
    os.utime(folder / "k1-1.kartosql-part", (1000, 1000))
    os.utime(folder / "letters.doc", (1000, 1000))
    cache.put("k1", ["b"], [bytes(200)])
    names = {path.name for path in folder.iterdir()}
    assert {"letters.doc", "new.kartosql-part"} <= names
    assert "k1-1.kartosql-part" not in names
    assert (found(cache, "a"), found(cache, "b")) == ([b"small"], [bytes(200)])


def test_of_many_small_entries_few_are_put_with_a_look_at_all_of_them(tmp_path, monkeypatch):
    cache, looks, real = UserCache(str(tmp_path / "cache")), [], user_cache._evict
    monkeypatch.setattr(user_cache, "_evict", lambda *args: (looks.append(args), real(*args)))
    for number in range(1000):
        cache.put("k1", [str(number)], [b"small"])
    assert 0 < len(looks) < 100  # 16 are likely
    monkeypatch.setattr(user_cache, "_MAX_ENTRIES", 10)
    for number in range(1000):
        cache.put("k1", [str(number)], [b"small"])
    monkeypatch.setattr(user_cache, "_LOOKS", 1)
    cache.put("k1", ["last"], [b"small"])
    assert len(os.listdir(cache.folder)) == 11
    assert found(cache, "last") == [b"small"]


def test_buffers_stay_when_their_entry_is_deleted_or_replaced(cache):
    cache.put("k1", ["a"], BUFFERS)
    views = cache.get("k1", ["a"])
    cache.put("k1", ["a"], [b"newer"])
    assert found(cache, "a") == [b"newer"]
    entry(cache).unlink()
    assert cache.get("k1", ["a"]) is None
    assert [bytes(v) for v in views] == [bytes(b) for b in BUFFERS]


@pytest.mark.parametrize(("call", "more"), [("fsync", [bytes(1 << 18)]), ("rename", [])])
def test_a_disk_that_fails_is_no_cache_and_leaves_nothing(cache, monkeypatch, call, more):
    cache.put("k1", ["a"], BUFFERS)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    cache.put("k1", ["b"], [*BUFFERS, *more])
    assert cache.get("k1", ["b"]) is None
    entry(cache)  # one file only
    missing = UserCache("/proc/nowhere/cache")
    missing.put("k1", ["a"], BUFFERS)
    assert missing.get("k1", ["a"]) is None


WRITER = """
import sys
from kartosql.user_cache import UserCache

cache = UserCache(sys.argv[1], 200_000)
for turn in range(150):
    for name in "abc":
        data = bytes([turn % 251]) * 20_000
        cache.put("k1", [name], [data, data])
        found = cache.get("k1", [name])
        if found is not None:
            first, second = map(bytes, found)
            assert first == second and len(set(first)) == 1 and len(first) == 20_000, name
"""


def test_processes_that_write_the_same_entries_see_whole_ones(cache):
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, cache.folder]) for _ in range(3)]
    assert [p.wait() for p in processes] == [0, 0, 0]
    assert all(path.name.endswith(".kartosql") for path in Path(cache.folder).iterdir())


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("KARTOSQL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == "/home/me/.cache/kartosql"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, as the specification says
    assert cache_folder() == "/home/me/.cache/kartosql"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/me")
    assert cache_folder() == "/var/me/kartosql"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == "/home/me/Library/Caches/kartosql"
    monkeypatch.setenv("KARTOSQL_CACHE", "~/elsewhere")
    assert cache_folder() == "/home/me/elsewhere"
    assert cache_folder(str(tmp_path)) == str(tmp_path)
    monkeypatch.setenv("KARTOSQL_CACHE", "OFF")
    assert cache_folder() is None
    assert cache_folder(str(tmp_path)) == str(tmp_path)
    assert cache_folder("off") is None


def test_off_means_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("KARTOSQL_CACHE", "off")
    cache = UserCache(cache_folder())
    cache.put("k1", ["a"], BUFFERS)
    assert cache.get("k1", ["a"]) is None


def test_the_setting_names_the_folder_or_switches_it_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Settings({"cache": "here"})["cache"] == str(tmp_path / "here")
    assert [Settings({"cache": off})["cache"] for off in (False, "OFF", "false")] == ["off"] * 3
    for wrong in ("", True, 3, "a\0b"):
        with pytest.raises(UsageError) as e:
            Settings({"cache": wrong})
        assert e.value.code == "invalid-setting"
    with kartosql.connect(tmp_path, cache=tmp_path / "c") as con, pytest.raises(SqlError) as refused:
        con.sql("SET cache = 'elsewhere'")
    assert refused.value.code == "not-allowed"
