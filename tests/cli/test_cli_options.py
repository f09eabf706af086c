from __future__ import annotations

import pytest

from kartosql.cli.options import StatementSource, parse_demo, parse_options, value
from kartosql.errors import UsageError


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("5", 5),
        ("-5", -5),
        ("0", 0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("'5'", "5"),
        ('"true"', "true"),
        ("''", ""),
        ("", ""),
        ("'", "'"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("inf", "inf"),
        ("nan", "nan"),
        (".", "."),
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_values_on_the_command_line(text, means):
    found = value(text)
    assert found == means
    assert type(found) is type(means)


def test_sources_keep_their_order_and_stdin_may_stand_anywhere():
    options = parse_options(["-c", "1", "store", "-f", "a.sql", "-f", "-", "-c", "2", "-"])
    assert options.url == "store"
    assert options.sources == [
        StatementSource("-c", "1"),
        StatementSource("-f", "a.sql"),
        StatementSource("-", "-"),
        StatementSource("-c", "2"),
        StatementSource("-", "-"),
    ]


def test_without_a_store_and_statements_it_is_the_shell():
    assert parse_options([]).url == ""


def test_calls_do_not_share_sources():
    assert len(parse_options(["store", "-c", "1"]).sources) == 1
    assert parse_options(["store"]).sources == []


def test_settings_come_from_set_and_from_their_own_options():
    options = parse_options(["s", "--set", "threads=2", "--set", "timeout=1", "--timeout", "5", "--max-bytes", "1GB"])
    assert options.settings == {"threads": "2", "timeout": "5", "max_bytes": "1GB"}


def test_parameters_and_storage_options_by_name():
    options = parse_options(
        [
            "s",
            *("--param", "1=5"),
            *("--param", "name=a=b"),
            *("--storage-option", "anon=true"),
            *("--storage-option", 'client_kwargs={"endpoint_url": "http://x"}'),
            *("--storage-option", "secret='{x'"),
        ]
    )
    assert options.parameters == {"1": 5, "name": "a=b"}
    assert options.storage_options == {"anon": True, "client_kwargs": {"endpoint_url": "http://x"}, "secret": "{x"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-"], "store is missing"),
        (["-c", "select 1"], "store is missing"),
        (["a", "b"], "Unexpected 'b'"),
        (["a", "-", "-"], "Unexpected '-'"),
        (["--stats", "demo"], "stands first"),
        (["s", "--format", "yaml"], "yaml"),
        (["s", "--form", "csv"], "--form"),
        (["s", "--nope"], "--nope"),
        (["s", "-c"], "-c"),
        (["s", "--param", "x"], "name=value"),
        (["s", "--param", "=x"], "name=value"),
        (["s", "--param", "x=1", "--param", "x=2"], "given twice"),
        (["s", "--storage-option", "x={"], "no JSON"),
    ],
)
def test_bad_command_lines_are_usage_errors(arguments, message):
    with pytest.raises(UsageError) as e:
        parse_options(arguments)
    assert message in e.value.message
    assert e.value.code == "invalid-argument"
    assert e.value.hint


def test_demo_has_a_folder_by_default():
    assert parse_demo([]) == "kartosql-demo"
    assert parse_demo(["x"]) == "x"
    with pytest.raises(UsageError):
        parse_demo(["x", "y"])


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--fromat", "csv"], "--format"),
        (["--forma=csv"], "--format"),
        (["--parm", "a=1"], "--param"),
        (["--format", "cvs"], "csv"),
        (["--format", "jsno"], "json"),
    ],
)
def test_a_misspelt_option_is_told_the_one_that_is_meant(arguments, meant):
    with pytest.raises(UsageError) as caught:
        parse_options(["store", *arguments, "-c", "SELECT 1"])
    assert caught.value.hint.startswith(f"Did you mean {meant}?")
