from __future__ import annotations

import json
import math
import re

import pytest

from kartosql.engines.duckdb.runtime import check_setting
from kartosql.errors import SqlError, UsageError
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


def test_none_restores_the_default_and_reset_what_was_given():
    settings = Settings({"threads": 4, "engine": "duckdb"})
    settings.set("threads", None)
    settings.set("engine", "spark")
    settings.reset("engine")
    assert (settings["threads"], settings["engine"]) == (None, "duckdb")
    settings.reset("THREADS")
    assert settings["threads"] == 4
    copy = settings.copy()
    copy.set("threads", 2)
    copy.reset("threads")
    assert copy["threads"] == 4


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
    with pytest.raises(UsageError) as e:
        find("readonly")
    assert "Did you mean read_only?" in e.value.hint


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


class _Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


BAD = {
    "a text": "lots",
    "no text": "",
    "NUL": "a\0b",
    "half a pair": "\ud800",
    "a path": "../../etc/passwd",
    "negative": -1,
    "a negative fraction": -0.5,
    "nan": math.nan,
    "nan as text": "nan",
    "infinite": math.inf,
    "infinite as text": "inf",
    "huge": 10**400,
    "huge and without a repr": 10**5000,
    "huge as text": "9" * 5000,
    "huge with a unit": "9" * 300 + "GB",
    "true": True,
    "bytes": b"5",
    "a list": [1],
    "a map": {"a": 1},
    "an object": object(),
    "an object without a repr": _Odd(),
    "complex": 1j,
    "other digits": "\u0665",
}
GOOD = {
    "single_writer": {"true"},
    "attach": {"true"},
    "keep_answers": {"true"},
    "temp_directory": {"a text", "a path", "nan as text", "infinite as text", "huge as text", "huge with a unit"}
    | {"other digits"},
    "cache": {"a text", "a path", "nan as text", "infinite as text", "huge as text", "huge with a unit"}
    | {"other digits"},
}


def test_every_setting_refuses_bad_values_when_it_is_set():
    refused = set()
    for name in SETTINGS:
        settings = Settings(check=check_setting)
        for kind, value in BAD.items():
            if kind in GOOD.get(name, ()):
                continue
            with pytest.raises(UsageError) as e:
                settings.set(name, value)
            assert e.value.code == "invalid-setting", (name, kind)
            json.dumps(e.value.to_dict()).encode()
            assert settings[name] == SETTINGS[name].default, (name, kind)
            refused.add(kind)
    assert refused == set(BAD)


def test_time_zones_are_those_that_the_engine_knows():
    settings = Settings(check=check_setting)
    for zone in ("Europe/Berlin", "europe/berlin", "Etc/GMT+5", "EST", "PST", "UTC", "America/Argentina/Buenos_Aires"):
        settings.set("TimeZone", zone)
    for zone in ("/etc/localtime", "posix/Europe/Berlin", "posixrules", "localtime", "+02:00", "Europe/", "zone.tab"):
        with pytest.raises(UsageError) as e:
            settings.set("TimeZone", zone)
        assert e.value.code == "invalid-setting", zone


def test_a_statement_narrows_what_the_owner_gave_and_reset_goes_back_to_it():
    settings = Settings({"timeout": 5, "max_bytes": "1MB", "memory_limit": "1GB", "threads": 2})
    for name, less, more in (
        ("timeout", 4, 5.1),
        ("max_bytes", "999KB", "1MiB"),
        ("memory_limit", "900MB", "1GiB"),
        ("threads", 1, 3),
    ):
        given = settings[name]
        settings.narrow(name, less)
        narrowed = settings[name]
        with pytest.raises(SqlError) as e:
            settings.narrow(name, more)
        assert (e.value.code, settings[name]) == ("not-allowed", narrowed)
        settings.narrow(name, given)  # never narrower than the owner said, however narrow it is now
        settings.narrow(name, less)
        settings.reset(name)
        assert settings[name] == given


def test_limits_that_nobody_gave_are_those_of_the_machine():
    settings = Settings()
    settings.narrow("timeout", 1e8)
    settings.narrow("max_bytes", 2**62)
    for name, more in (("memory_limit", 2**62), ("threads", 1024)):
        with pytest.raises(SqlError) as e:
            settings.narrow(name, more)
        assert e.value.code == "not-allowed"


def test_each_setting_says_whether_it_narrows():
    caps = {f"max_{what}" for what in ("bytes", "columns", "conditions", "subqueries", "constants", "nesting")}
    assert {s.name for s in SETTINGS.values() if s.narrows} == {"timeout", "memory_limit", "threads"} | caps
    for setting in SETTINGS.values():
        if not setting.narrows:
            with pytest.raises(SqlError) as e:
                Settings().narrow(setting.name, setting.default)
            assert e.value.code == "not-allowed"
