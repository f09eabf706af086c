from __future__ import annotations

import re

import pytest

from kartosql.errors import UsageError
from kartosql.settings import SETTINGS, Settings, find, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (17, 17),
        ("17", 17),
        ("500MB", 500_000_000),
        ("2 GiB", 2 << 30),
        ("1.5k", 1500),
        ("1KiB", 1024),
        ("3t", 3 * 10**12),
        (" 7 b ", 7),
    ],
)
def test_sizes_are_numbers_of_bytes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "-1", -1, True, "1 PB", "1e3", "1,5k", "None", [], 1.5e300, "1ib", "5i", "9" * 400]
)
def test_texts_that_are_no_size_are_refused(text):
    with pytest.raises(UsageError) as e:
        Settings({"max_bytes": text})
    assert e.value.code == "invalid-setting"


def test_unset_settings_have_their_default():
    settings = Settings()
    assert {name: settings[name] for name in SETTINGS} == {s.name: s.default for s in SETTINGS.values()}
    assert settings.engine_settings() == {"TimeZone": "UTC"}


def test_names_are_matched_case_insensitively():
    settings = Settings({"timezone": "Europe/Berlin", "THREADS": "4"})
    assert settings["TimeZone"] == "Europe/Berlin"
    assert settings.engine_settings() == {"TimeZone": "Europe/Berlin", "threads": 4}


def test_none_and_reset_restore_the_default():
    settings = Settings({"threads": 4, "engine": "duckdb"})
    settings.set("threads", None)
    settings.reset("engine")
    assert (settings["threads"], settings["engine"]) == (None, "auto")


def test_a_copy_is_independent():
    first = Settings({"threads": 1})
    second = first.copy()
    second.set("threads", 2)
    assert (first["threads"], second["threads"]) == (1, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("engine", "sqlite"),
        ("timeout", 0),
        ("timeout", "nan"),
        ("timeout", float("inf")),
        ("timeout", "soon"),
        ("threads", 0),
        ("threads", True),
        ("threads", 1.5),
        ("threads", "x"),
        ("threads", float("inf")),
        ("threads", "1.5"),
        ("memory_limit", ""),
        ("temp_directory", "a\0b"),
        ("TimeZone", 3),
    ],
)
def test_bad_values_are_refused_with_what_is_expected(name, value):
    settings = Settings()
    with pytest.raises(UsageError) as e:
        settings.set(name, value)
    assert e.value.code == "invalid-setting"
    assert name in e.value.message
    assert re.search(r"; expected (an? |auto, )", e.value.hint)
    assert settings[name] == SETTINGS[name].default


def test_unknown_settings_are_refused_with_the_nearest_name():
    with pytest.raises(UsageError) as e:
        find("treads")
    assert e.value.code == "unknown-setting"
    assert "Did you mean threads?" in e.value.hint


def test_unknown_settings_without_a_near_name_list_all():
    with pytest.raises(UsageError) as e:
        Settings({"zzz": 1})
    assert "Did you mean" not in e.value.hint
    assert all(name in e.value.hint for name in SETTINGS)


def test_the_settings_of_writing_are_parsed():
    assert [SETTINGS[name].default for name in ("single_writer", "write_memory", "grace_period")] == [
        False,
        512_000_000,
        7 * 24 * 3600,
    ]
    settings = Settings({"single_writer": "true", "write_memory": "1GiB", "grace_period": "3600"})
    assert settings["single_writer"] is True
    assert settings["write_memory"] == 1 << 30
    assert settings["grace_period"] == 3600.0
    for value in ("yes", 1, "on"):
        with pytest.raises(UsageError) as e:
            settings.set("single_writer", value)
        assert "true or false" in e.value.hint


def test_the_grace_period_is_an_hour_at_least():
    with pytest.raises(UsageError) as e:
        Settings({"grace_period": 3599})
    assert e.value.code == "invalid-setting"
