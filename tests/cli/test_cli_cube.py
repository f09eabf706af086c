"""``kartosql cube`` does what kartothek_cube did, and prints what that printed."""

from __future__ import annotations

import pyarrow as pa
import pytest

import golden
import kartosql

CUBE = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])


@pytest.fixture
def store(tmp_path) -> str:
    """A store with the cube ``c`` of a seed and two more datasets."""
    folder = tmp_path / "store"
    folder.mkdir()
    seed = {"x": [0, 1, 2, 3], "p": [0, 0, 1, 1], "v": ["a", "b", "", "d"], "i": [7, 8, 7, 9]}
    enrich = {"x": [0, 1], "p": [0, 0], "w": [1.5, 2.5]}
    with kartosql.connect(str(folder)) as con:
        data = {"seed": pa.table(seed), "enrich": pa.table(enrich), "extra": pa.table({"x": [1], "p": [0], "u": [1]})}
        con.build_cube(CUBE, data, metadata={"enrich": {"origin": "é"}})
    return str(folder)


def datasets(folder: str) -> list[str]:
    return kartosql.connect(folder).datasets()


def test_info_prints_columns_and_metadata_of_each_dataset(run, store):
    found = run("cube", "info", store, "c", "--include", "enrich")
    assert (found.code, found.err) == (0, "")
    lines = found.out.split("\n")
    assert lines[:9] == [
        "Infos",
        "UUID Prefix:        c",
        "Dimension Columns:",
        "  - x: BIGINT",
        "Partition Columns:",
        "  - p: BIGINT",
        "Index Columns:",
        "  - i: BIGINT",
        "Seed Dataset:      seed",
    ]
    assert lines[9:15] == ["", "Dataset: enrich", "Partition Keys:", "  - p: BIGINT", "Partitions: 1", "Metadata:"]
    assert '    "ktk_cube_is_seed": false,' in lines
    assert '    "origin": "é"' in lines
    assert "kartosql" not in found.out
    assert lines[-5:] == ["Dimension Columns:", "  - x: BIGINT", "Payload Columns:", "  - w: DOUBLE", ""]


def test_stats_prints_each_dataset_and_totals(run, store):
    found = run("cube", "stats", store, "c", "--exclude", "extra")
    sizes = kartosql.connect(store).collect_stats("c", ["enrich", "seed"])
    one, two = (sizes[name]["blobsize"] for name in ("enrich", "seed"))
    assert found.out == (
        f"enrich\nblobsize:  {one:,}\nfiles:  1\npartitions:  1\nrows:  2\n\n"
        f"seed\nblobsize:  {two:,}\nfiles:  2\npartitions:  2\nrows:  4\n\n"
        f"__total__\nblobsize:  {one + two:,}\nfiles:  3\n"
    )


@pytest.mark.parametrize(
    ("patterns", "shown"),
    [
        ([], ["enrich", "extra", "seed"]),
        (["--include", "e*"], ["enrich", "extra"]),
        (["--include", "seed, en*"], ["enrich", "seed"]),
        (["--exclude", "?xtra,seed"], ["enrich"]),
        (["--include", "e*", "--exclude", "enrich"], ["extra"]),
    ],
)
def test_patterns_choose_datasets(run, store, patterns, shown):
    found = run("cube", "stats", store, "c", *patterns).out.split("\n")
    assert [line for line in found if line and ":" not in line] == [*shown, "__total__"]


def test_query_runs_statements_or_the_originals_conditions(run, store):
    assert run("cube", "query", store, "c", "SELECT count(*) AS n FROM c").out == "n\n4\n"
    assert run("cube", "query", store, "c", stdin="SELECT 1 AS n; SELECT 2 AS m").out == "n\n1\nm\n2\n"
    found = run("cube", "query", store, "c", "--where", "x > 0 & i = 7", "--payload", "v,i", "--format", "json")
    assert found.out == '[\n{"i":7,"p":1,"v":"","x":2}\n]\n'
    assert run("cube", "query", store, "c", "--include", "seed", "--dimensions", "x").out.startswith(
        "i,p,v,x\n7,0,a,0\n"
    )


def test_query_writes_a_file(run, store, tmp_path):
    import pyarrow.parquet as pq

    place = str(tmp_path / "rows.parquet")
    assert run("cube", "query", store, "c", "--where", "x = 1", "-o", place).code == 0
    assert pq.read_table(place).num_rows == 1


def test_query_opens_the_shell_on_the_cube(run, store, monkeypatch):
    with kartosql.connect(store) as con:
        con.build_cube(kartosql.Cube("d", ["x"], ["p"]), {"seed": pa.table({"x": [0], "p": [0]})})
    lines = iter([".info", ".quit"])
    monkeypatch.setattr("builtins.input", lambda: next(lines))
    found = run("cube", "query", store, "c")
    assert "UUID Prefix:        c\n" in found.out


def test_an_index_is_built_of_columns_that_are_like_the_patterns(run, store):
    found = run("cube", "index", store, "c", "e*", "[uw]", "--exclude", "extra")
    assert found.out == "enrich: index of w, 2 values\n"
    with kartosql.connect(store) as con:
        rows = con.sql("SHOW INDEXES FROM c").arrow().to_pylist()
    assert ("enrich", "w") in [(row["dataset"], row["column"]) for row in rows]


def test_a_cube_is_copied_and_deleted(run, store, tmp_path):
    target = str(tmp_path / "copy")
    assert run("cube", "copy", store, "c", target, "--exclude", "extra").code == 0
    assert datasets(target) == ["c++enrich", "c++seed"]
    again = run("cube", "copy", store, "c", target, "--exclude", "extra")
    assert (again.code, "dataset-exists" in again.err) == (2, True)
    assert run("cube", "copy", store, "c", target, "--exclude", "extra", "--overwrite").code == 0
    assert run("cube", "copy", store, "c", target, "d").code == 0
    assert (
        run("cube", "delete", target, "d", "--include", "e*").out
        == "enrich: deleted, files 1\nextra: deleted, files 1\n"
    )
    assert datasets(target) == ["c++enrich", "c++seed", "d++seed"]
    assert run("cube", "delete", target, "c").code == 0
    assert datasets(target) == ["d++seed"]


def test_a_profile_is_copied_to(run, store, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(f'[profiles.mine]\nurl = "{tmp_path}/there"\n')
    monkeypatch.setenv("KARTOSQL_CONFIG", str(config))
    assert run("cube", "copy", store, "c", "@mine").code == 0
    assert "c++seed" in datasets(str(tmp_path / "there"))


def test_what_belongs_to_nothing_is_cleaned_up(run, store, tmp_path):
    lost = tmp_path / "store" / "c++seed" / "table" / "p=0" / "lost.parquet"
    lost.write_bytes(b"x" * 10)
    told = "seed: {}, marked 1, removed 0, bytes 10\n"
    assert told.format("looked at") in run("cube", "cleanup", store, "c", "--dry-run").out
    assert run("cube", "cleanup", store, "c", "--include", "seed").out == told.format("cleaned")
    assert lost.exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["info"], "invalid-argument"),
        (["inf", "{}", "c"], "invalid-argument"),
        (["info", "{}"], "invalid-argument"),
        (["info", "{}", "c", "more"], "invalid-argument"),
        (["info", "{}", "c", "-c", "SELECT 1"], "invalid-argument"),
        (["index", "{}", "c", "seed"], "invalid-argument"),
        (["info", "{}", "nope"], "unknown-table"),
        (["delete", "{}", "nope"], "unknown-table"),
        (["cleanup", "{}", "nope"], "unknown-table"),
        (["stats", "{}", "c", "--include", "q*"], "unknown-dataset"),
        (["stats", "{}", "c", "--include", "seed", "--exclude", "*"], "unknown-dataset"),
        (["index", "{}", "c", "seed", "nope"], "unknown-column"),
        (["query", "{}", "c", "SELECT 1", "--where", "x > 1"], "invalid-argument"),
        (["query", "{}", "c", "--where", "x >"], "invalid-condition"),
    ],
)
def test_what_cannot_be_done_is_told(run, store, words, code):
    found = run("cube", *[word.format(store) for word in words])
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(f"error[{code}]: ")
    assert "hint: " in found.err


def test_every_command_has_a_help(run):
    from kartosql.cli.cube import COMMANDS

    listed = run("cube", "--help").out
    for name, command in COMMANDS.items():
        assert f"  {name} {command.usage} " in listed
        assert run("cube", name, "--help").out.startswith(f"usage: kartosql cube {name} {command.usage} [options]")


def test_cubes_of_the_original_are_told(run):
    folder = str(golden.find("kartothek/ktk_store"))
    with kartosql.connect(folder, read_only=True) as con:
        cubes = list(con.cubes())
        sizes = con.collect_stats("grid")
    assert len(cubes) > 5
    for cube in cubes:
        found = run("cube", "info", folder, cube)
        assert found.code == 0, found.err
        assert found.out.startswith(f"Infos\nUUID Prefix:        {cube}\nDimension Columns:\n  - ")
        assert '"ktk_cube_is_seed": true' in found.out
    total = {what: f"{sum(one[what] for one in sizes.values()):,}" for what in ("blobsize", "files")}
    wanted = "\n__total__\nblobsize:  {blobsize}\nfiles:  {files}\n".format(**total)
    assert run("cube", "stats", folder, "grid").out.endswith(wanted)
