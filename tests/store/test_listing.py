from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

from kartosql.store import Store
from kartosql.store.listing import list_files


def test_a_folder_is_listed_again_if_a_file_goes_away_whose_rows_came_too_late(tmp_path: Path, monkeypatch):
    (tmp_path / "old.parquet").write_bytes(b"rows")
    real = os.scandir

    def late(path):
        with real(path) as found:
            entries = list(found)
        if (tmp_path / "old.parquet").exists():  # behind the names, in front of their details
            (tmp_path / "old.parquet").rename(tmp_path / "new.parquet")
        return nullcontext(iter(entries))

    monkeypatch.setattr(os, "scandir", late)
    assert [file.name for file in list_files(Store(str(tmp_path)))] == ["new.parquet"]


def test_a_folder_is_listed_again_if_a_folder_below_goes_away_whose_rows_came_too_late(tmp_path: Path, monkeypatch):
    root = tmp_path / "t"
    (root / "p=1").mkdir(parents=True)
    (root / "p=1" / "a.parquet").write_bytes(b"rows")
    real = os.scandir

    def late(path):
        with real(path) as found:
            entries = list(found)
        if (root / "p=1").exists():  # behind the listing of the root, in front of its own
            (root / "p=1").rename(root / "p=0")
        return nullcontext(iter(entries))

    monkeypatch.setattr(os, "scandir", late)
    assert [file.name for file in list_files(Store(str(root)))] == ["p=0/a.parquet"]


def test_infos_below_a_prefix_are_told_again_if_a_folder_goes_away(tmp_path: Path, monkeypatch):
    (tmp_path / "t" / "p=1").mkdir(parents=True)
    (tmp_path / "t" / "p=1" / "a.parquet").write_bytes(b"rows")
    real = os.walk

    def late(path, onerror):
        for found in real(path, onerror=onerror):
            yield found
            if (tmp_path / "t" / "p=1").exists():
                (tmp_path / "t" / "p=1").rename(tmp_path / "t" / "p=0")

    monkeypatch.setattr(os, "walk", late)
    assert list(Store(str(tmp_path)).infos_below("t")) == ["t/p=0/a.parquet"]
