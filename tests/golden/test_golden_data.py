"""The golden data: what this project made stands in the repository, byte by byte; the rest outside, where it is."""

from __future__ import annotations

import filecmp
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import golden

# One of each kind that public repositories hold.
PUBLIC = (
    "xskipper/repo_v1_t1",
    "xskipper/built_types_bloom",
    "xskipper/emulated_v0_unversioned",
    "xskipper/data/sample1_initial_csv",
    "odf/hashes.json",
    "odf/datasets/gps",
    "odf/arrow/kamu-two-columns.bin",
)


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("odf", "xskipper"):
        for entries in json.loads((golden.OWN / name / "manifest.json").read_text("utf-8")).values():
            if isinstance(entries, list):
                yield from ((name, e) for e in entries)


def named(entry: dict[str, Any]) -> list[str]:
    """Return the files and folders of an entry."""
    found = [entry[key] for key in ("file", "folder", "metadata_dir", "data_dir") if key in entry]
    return [*found, *entry.get("files", ())]


def test_data_of_public_repositories_are_there():
    for name in PUBLIC:
        golden.find(name)


def test_the_repository_holds_what_its_manifests_name_and_nothing_that_others_made():
    seen = 0
    for folder, entry in manifests():
        assert entry.get("origin", "").startswith("self-made") or entry.get("source", "").endswith("constructed"), entry
        for name in named(entry):
            assert (golden.OWN / folder / name).exists(), entry
            seen += 1
    assert seen > 50
    assert not [name for name in PUBLIC if (golden.OWN / name).exists()]


def test_files_of_the_repository_are_those_that_were_made():
    """Whoever checks them out gets them unchanged, whatever git is told about ends of lines."""
    files = [p.relative_to(golden.OWN).as_posix() for p in golden.OWN.rglob("*") if p.is_file()]
    assert len(files) > 500
    beside = golden.BESIDE / "golden"
    if beside.is_dir():
        parted = {f"{name}/manifest.json" for name in ("odf", "xskipper")}
        changed = [f for f in files if f not in parted and not filecmp.cmp(golden.OWN / f, beside / f, shallow=False)]
        assert changed == []
    command = ["git", "check-attr", "-z", "--stdin", "text"]
    asked = "\0".join(f"tests/data/{f}" for f in files)
    try:
        done = subprocess.run(command, cwd=golden.CHECKOUT, input=asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or no checkout of it")
    assert set(done.stdout.split("\0")[2::3]) == {"unset"}


def outcome(monkeypatch, tmp_path: Path, **variables: str) -> str:
    monkeypatch.setattr(golden, "BESIDE", tmp_path / "shared")
    for name in ("CI", "KARTOSQL_GOLDEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    try:
        golden.find("xskipper/nothing")
    except pytest.skip.Exception:
        return "skipped"
    except pytest.fail.Exception:
        return "failed"
    raise AssertionError("found")


def test_what_is_missing_fails_only_where_it_should_be(monkeypatch, tmp_path):
    assert outcome(monkeypatch, tmp_path) == "skipped"
    assert outcome(monkeypatch, tmp_path, CI="1") == "skipped"
    assert outcome(monkeypatch, tmp_path, KARTOSQL_GOLDEN=str(tmp_path)) == "failed"
    (tmp_path / "shared").mkdir()
    assert outcome(monkeypatch, tmp_path) == "skipped"
    assert outcome(monkeypatch, tmp_path, CI="1") == "failed"


def test_a_named_folder_stands_for_all_golden_data(monkeypatch, tmp_path):
    (tmp_path / "kartothek").mkdir()
    monkeypatch.setenv("KARTOSQL_GOLDEN", str(tmp_path))
    assert golden.find("kartothek") == tmp_path / "kartothek"
    with pytest.raises(pytest.fail.Exception):
        golden.find("sql/cases.json")
