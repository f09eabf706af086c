"""Metadata sets that the real library wrote: files with a match are kept, what it proves is skipped."""

from __future__ import annotations

from typing import Any

import pytest

import golden
from kartosql.formats.xskipper.store import MetadataStore

ALL = golden.samples()


def _opened(sample: dict[str, Any]) -> MetadataStore:
    keys = (sample["encrypted"] or {}).get("keys")
    return MetadataStore.open(golden.find(f"xskipper/{sample['metadata_dir']}"), keys)


def _listing(sample: dict[str, Any]) -> list[tuple[str, int]]:
    parts = [name.rpartition("#") for name in sample["objects"]]
    return [(path, int(time)) for path, _, time in parts]


@pytest.mark.parametrize("sample", ALL)
def test_a_metadata_set_says_what_the_original_says(sample):
    store = _opened(sample)
    assert store.versions == [sample["version"]]
    assert store.table_identifiers == [sample["table_identifier"]]
    assert sorted(store.objects) == sorted(sample["objects"])
    expected = [(i["name"], i["cols"], i["column"], i["spark_type"]) for i in sample["indexes"]]
    assert [(i.name, list(i.cols), i.column, i.spark_type) for i in store.indexes] == expected
    assert store.problems == []


@pytest.mark.parametrize("sample", ALL)
def test_files_with_a_match_are_kept_and_provable_ones_skipped(sample):
    store, listing = _opened(sample), _listing(sample)
    prefix = sample["object_prefix"] + "/"
    for case in sample["cases"]:
        read = {path.removeprefix(prefix) for path in store.select(case["predicate"], listing)}
        assert set(case["must_keep"]) <= read, case["predicate"]
        assert read.isdisjoint(case["must_skip"]), case["predicate"]
        # What is provable at all from these metadata is skipped as well.
        assert read.isdisjoint(case["sound_skip"]), case["predicate"]
    assert store.problems == []


@pytest.mark.parametrize("sample", ALL)
def test_changed_and_new_files_are_read(sample):
    store = _opened(sample)
    for case in sample.get("listing_cases", ()):
        assert set(store.select(case["predicate"], case["listing"])) == set(case["sound_read"]), case["about"]
