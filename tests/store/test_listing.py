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
