from __future__ import annotations

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.cli import options
from kartosql.errors import UsageError
from kartosql.render import formats
from kartosql.render.formats import BINARY_FORMATS, WRITERS, Style, write_stream

TABLE = pa.table({"s": ["a", None, "", 'x,"y"\nz'], "n": [1, None, 3, 4]})
TEXT_FORMATS = [f for f in WRITERS if f not in (*BINARY_FORMATS, "none")]


def written(table: pa.Table, format: str, chunk: int = 2, **how) -> bytes:
    out = io.BytesIO()
    rows = write_stream(table.to_reader(max_chunksize=chunk), format, out, Style(**how))
    assert rows == table.num_rows
    return out.getvalue()


def test_csv_tells_null_from_the_empty_text():
    assert written(TABLE, "csv").decode() == 's,n\na,1\n,\n"",3\n"x,""y""\nz",4\n'
    assert written(TABLE, "csv", header=False).decode().startswith("a,1\n")


@pytest.mark.parametrize("large", [1, 1 << 40])
def test_csv_has_the_separator_and_the_text_for_null_that_is_asked_for(monkeypatch, large):
    monkeypatch.setattr(formats, "LARGE", large)
    table = pa.table({"s": [None, "NA", "", "a;b", "c,d"], "n": [1, None, 3, 4, 5]})
    expected = 's;n\nNA;1\n"NA";NA\n"";3\n"a;b";4\nc,d;5\n'
    assert written(table, "csv", chunk=9, null="NA", separator=";").decode() == expected


@pytest.mark.parametrize("large", [1, 1 << 40])
def test_unaligned_values_stand_bare(monkeypatch, large):
    monkeypatch.setattr(formats, "LARGE", large)
    assert written(TABLE, "unaligned", chunk=9, header=False).decode() == 'a|1\n|\n|3\nx,"y"\nz|4\n'
    assert written(TABLE, "unaligned", chunk=9, null="-", separator="::").decode().startswith("s::n\na::1\n-::-\n")


@pytest.mark.parametrize("format", ["box", "markdown", "vertical", "html"])
def test_null_reads_as_asked_for(format):
    text = written(TABLE, format, null="<nothing>").decode()
    assert text.count("nothing") == 2
    assert "NULL" not in text


def test_a_box_without_header_has_rows_alone():
    assert written(pa.table({"a": [1]}), "box", header=False).decode() == "┌───┐\n│ 1 │\n└───┘\n"


def test_csv_reads_back():
    rows = list(csv.reader(io.StringIO(written(TABLE, "csv").decode(), newline="")))
    assert rows == [["s", "n"], ["a", "1"], ["", ""], ["", "3"], ['x,"y"\nz', "4"]]


def test_csv_stays_faithful_unless_on_a_terminal():
    table = pa.table({"s": ["\x1b[31m\u202e"]})
    assert written(table, "csv").decode() == "s\n\x1b[31m\u202e\n"
    assert written(table, "csv", terminal=True).decode() == "s\n\\x1b[31m\\u202e\n"


def test_csv_has_a_line_for_each_null():
    assert written(pa.table({"s": pa.nulls(3, pa.string())}), "csv") == b"s\n\n\n\n"


def test_tsv_quotes_tabs():
    assert written(pa.table({"a": ["x\ty", "1,2"], "b": [1, 2]}), "tsv").decode() == 'a\tb\n"x\ty"\t1\n1,2\t2\n'


def test_json_is_one_array_of_objects():
    text = written(TABLE, "json").decode()
    assert json.loads(text) == TABLE.to_pylist()
    assert len(text.splitlines()) == TABLE.num_rows + 2
    assert json.loads(written(TABLE.slice(0, 0), "json")) == []


def test_jsonl_is_one_object_per_line():
    lines = written(TABLE, "jsonl").decode().splitlines()
    assert [json.loads(line) for line in lines] == TABLE.to_pylist()
    assert written(TABLE.slice(0, 0), "jsonl") == b""


def test_json_keeps_columns_of_one_name_apart():
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert json.loads(written(table, "jsonl")) == {"a": 1, "a_1": 2}
    assert pq.read_table(io.BytesIO(written(table, "parquet"))).column_names == ["a", "a_1"]


def test_markdown_escapes_its_own_signs():
    table = pa.table({"a|b": ["x|y\n<b>", "\\"], "n": [1, 2]})
    assert written(table, "markdown").decode().splitlines() == [
        "| a\\|b | n |",
        "| --- | ---: |",
        "| x\\|y\\\\n&lt;b> | 1 |",
        "| \\\\ | 2 |",
    ]


def test_vertical_numbers_rows_across_batches():
    lines = written(pa.table({"a": [1, 2, 3], "long": ["x", "y", None]}), "vertical").decode().splitlines()
    assert lines[:3] == ["── row 1 ──", "a    │ 1", "long │ x"]
    assert lines[-3:] == ["── row 3 ──", "a    │ 3", "long │ NULL"]


@pytest.mark.parametrize("format", TEXT_FORMATS)
def test_no_control_character_reaches_a_terminal(format):
    hostile = "a\x1b]0;t\x07\x9b\u202e\u2066b"
    table = pa.table({hostile: [hostile], "l": [[hostile]]})
    text = written(table, format, terminal=True).decode()
    assert all(c.isprintable() or c in "\n\t" for c in text)


def test_parquet_and_arrow_read_back():
    assert pq.read_table(io.BytesIO(written(TABLE, "parquet"))).equals(TABLE)
    assert pa.ipc.open_file(io.BytesIO(written(TABLE, "arrow"))).read_all().equals(TABLE)
    assert pq.read_table(io.BytesIO(written(TABLE.slice(0, 0), "parquet"))).schema == TABLE.schema


def test_parquet_gathers_small_batches_into_row_groups():
    file = written(pa.table({"n": range(200_000)}), "parquet", chunk=1000)
    metadata = pq.read_metadata(io.BytesIO(file))
    assert metadata.num_row_groups == 2
    assert metadata.num_rows == 200_000


def test_parquet_names_what_it_cannot_hold():
    table = pa.table({"i": pa.array([(1, 1, 1)], pa.month_day_nano_interval())})
    with pytest.raises(UsageError, match="Parquet cannot hold") as e:
        written(table, "parquet")
    assert e.value.code == "invalid-argument"
    assert "VARCHAR" in e.value.hint


class Halfway(Exception):
    pass


@pytest.mark.parametrize("format", BINARY_FORMATS)
def test_a_broken_stream_leaves_no_footer(format):
    def batches():
        yield pa.record_batch({"n": list(range(200_000))})
        raise Halfway

    out = io.BytesIO()
    with pytest.raises(Halfway):
        write_stream(pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), batches()), format, out)
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(io.BytesIO(out.getvalue())) if format == "parquet" else pa.ipc.open_file(out.getvalue())


@pytest.mark.parametrize("format", BINARY_FORMATS)
def test_binary_formats_are_refused_on_a_terminal(format):
    with pytest.raises(UsageError, match="not for terminals"):
        written(TABLE, format, terminal=True)


def test_none_only_counts():
    assert written(TABLE, "none") == b""


def test_an_unknown_format_is_named():
    with pytest.raises(UsageError, match="'yaml'") as e:
        written(TABLE, "yaml")
    assert "jsonl" in e.value.hint


def test_only_box_reads_ahead():
    asked = []

    def batches():
        for at in range(3):
            asked.append(at)
            yield pa.record_batch({"n": [at]})

    class Watching(io.BytesIO):
        def write(self, data):
            seen.append(len(asked))
            return super().write(data)

    for format in TEXT_FORMATS:
        asked.clear()
        seen: list[int] = []
        write_stream(pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), batches()), format, Watching())
        assert (1 in seen) == (format != "box")


def test_the_command_line_offers_every_format():
    assert tuple(WRITERS) == options.FORMATS
