from __future__ import annotations

import pytest

from kartosql.formats.kartothek import naming


@pytest.mark.parametrize("name", ["a", "A-b_9", "sales++seed", "+", "a" * 300])
def test_legal_uuids(name):
    assert naming.is_dataset_uuid(name)


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "ü", "a b", "a\n", "..", "a\0", "%20"])
def test_illegal_uuids(name):
    assert not naming.is_dataset_uuid(name)


@pytest.mark.parametrize(
    ("file_name", "uuid"),
    [
        ("u.by-dataset-metadata.json", "u"),
        ("c++d.by-dataset-metadata.msgpack.zstd", "c++d"),
        ("u.by-dataset-metadata.msgpack", None),
        ("u.by-dataset-metadata.json.bak", None),
        (".by-dataset-metadata.json", None),
        ("retail.txt", None),
    ],
)
def test_metadata_files_name_their_dataset(file_name, uuid):
    assert naming.metadata_uuid(file_name) == uuid


@pytest.mark.parametrize(
    ("uuid", "parts"),
    [
        ("c++d", ("c", "d")),
        ("a+b++c+d", ("a+b", "c+d")),
        ("plain", None),
        ("++d", None),
        ("c++", None),
        ("a++b++c", None),
    ],
)
def test_members_are_prefix_and_dataset(uuid, parts):
    assert naming.split_member(uuid) == parts


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain-_.~", "plain-_.~"),
        ("a/b", "a%2Fb"),
        ("a=b", "a%3Db"),
        ("100%", "100%25"),
        ("", ""),
        ("ünï☃", "%C3%BCn%C3%AF%E2%98%83"),
        ("a b+c:d\n", "a%20b%2Bc%3Ad%0A"),
        (b"\x00\xff", "%00%FF"),
        ("..", ".."),
    ],
)
def test_percent_encoding_there_and_back(text, quoted):
    assert naming.quote(text) == quoted
    assert naming.unquote(quoted) == (text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("text", ["%", "%2", "%zz", "a%"])
def test_what_is_no_escape_stays(text):
    assert naming.unquote(text) == text.encode()


@pytest.mark.parametrize(
    ("folder", "keys", "values"),
    [
        ("p=1/q=2", ("p", "q"), {"p": b"1", "q": b"2"}),
        ("p=", ("p",), {"p": b""}),
        ("p=a%2Fb", ("p",), {"p": b"a/b"}),
        ("p=a%3Db", ("p",), {"p": b"a=b"}),
        ("Part%20Col=x", ("Part Col",), {"Part Col": b"x"}),
        # Unescaped slashes of older writers.
        ("p=a/b", ("p",), {"p": b"a/b"}),
        ("p=a/b/q=c/d/e", ("p", "q"), {"p": b"a/b", "q": b"c/d/e"}),
        ("p=a//b", ("p",), {"p": b"a//b"}),
        ("p=a/q=1/q=2", ("p", "q"), {"p": b"a", "q": b"1/q=2"}),
        # Missing keys are left to the caller.
        ("", ("p",), {}),
        ("q=2", ("p", "q"), {"q": b"2"}),
        ("x=1/p=2", ("p",), {"p": b"2"}),
    ],
)
def test_folders_hold_the_raw_values(folder, keys, values):
    assert naming.split_folder(folder, keys) == values


@pytest.mark.parametrize(("folder", "keys"), [("", ()), ("p=1/q=2", ("p", "q")), ("a%20b=1/x/c=2=3", ("a b",))])
def test_partition_keys_show_in_the_folder(folder, keys):
    assert naming.derive_partition_keys(folder) == keys


def test_folder_of_a_file_key():
    assert naming.folder_of("u/table/p=1/q=2/x.parquet", "u", "table") == "p=1/q=2"
    assert naming.folder_of("u/table/x.parquet", "u", "table") == ""


def test_write_ids_are_32_hex_digits():
    assert naming.write_id("u/table/p=1/" + "0a" * 16 + ".parquet") == "0a" * 16
    assert naming.write_id("u/table/part-0001.parquet") is None
