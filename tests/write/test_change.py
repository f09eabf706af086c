from __future__ import annotations

from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.write.change import Change, apply, partition_keys_of

OLD = DatasetDocument(
    "d",
    "d.by-dataset-metadata.json",
    ("a", "b", "c"),
    {"table": ("d/a", "d/b", "d/c")},
    ("p",),
    {"i": "d/i"},
    {"creation_time": "then", "owner": "me", "kartosql_commit": {}},
)


def _apply(document=OLD, removed=(), **options) -> DatasetDocument:
    return apply(document, Change("d", "change", **options), frozenset(removed), "now")


def _entries(*labels: str) -> dict[str, dict[str, str]]:
    return {label: {"table": f"d/{label}"} for label in labels}


def test_added_labels_come_last_in_their_order():
    made = _apply(added=_entries("z", "y"))
    assert made.labels == ("a", "b", "c", "z", "y")
    assert made.files == {"table": ("d/a", "d/b", "d/c", "d/z", "d/y")}


def test_removed_labels_are_gone():
    assert _apply(removed=["b"]).files == {"table": ("d/a", "d/c")}
    assert _apply(removed=["a", "b", "c"]).files == {}


def test_a_label_takes_the_place_it_is_given():
    made = _apply(removed=["a", "b"], added=_entries("ab", "z"), positions={"ab": "b"})
    assert made.labels == ("ab", "c", "z")
    assert made.files == {"table": ("d/ab", "d/c", "d/z")}


def test_no_label_gets_lost_where_two_want_one_place_or_the_place_stays_taken():
    made = _apply(removed=["a"], added=_entries("x", "y", "z"), positions={"x": "a", "y": "a", "z": "b"})
    assert sorted(made.labels) == ["b", "c", "x", "y", "z"]
    assert dict(zip(made.labels, made.files["table"], strict=True)) == {v: f"d/{v}" for v in made.labels}
    assert made.labels[0] in ("x", "y")


def test_tables_that_only_some_partitions_have_stay_apart():
    made = _apply(added={"z": {"other": "d/o"}})
    assert made.files == {"table": ("d/a", "d/b", "d/c", None), "other": (None, None, None, "d/o")}


def test_metadata_are_merged_and_marks_of_kartosql_left_out():
    made = _apply(metadata={"owner": "you", "kartosql_intent": {}})
    assert made.metadata == {"creation_time": "then", "owner": "you"}


def test_starting_anew_keeps_the_key_and_nothing_else():
    made = _apply(added=_entries("z"), replace_all=True, partition_keys=("q",), metadata={"a": 1})
    assert (made.key, made.labels, made.partition_keys) == (OLD.key, ("z",), ("q",))
    assert made.metadata == {"a": 1, "creation_time": "now"}


def test_a_new_dataset_has_the_key_of_its_format():
    assert _apply(None, create=True).key == "d.by-dataset-metadata.json"
    assert _apply(None, create=True, format="msgpack").key == "d.by-dataset-metadata.msgpack.zstd"


def test_partition_keys_that_the_document_lacks_come_from_a_path():
    document = DatasetDocument("d", OLD.key, ("a",), {"table": ("d/table/p=1/q=2/a.parquet",)}, None, {}, {})
    assert partition_keys_of(document) == ("p", "q")
    assert _apply(document).partition_keys == ("p", "q")
