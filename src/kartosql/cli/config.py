"""Config files: profiles of stores for the command, what they attach, and what the shell looks like."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kartosql.errors import StoreError, UsageError, closest, did_you_mean

if TYPE_CHECKING:
    from kartosql.cli.options import Options
    from kartosql.connection import Connection

CONFIG = "KARTOSQL_CONFIG"
FILE = "config.toml"
PROJECT = "kartosql.toml"  # in the current folder: what is attached to each store that is opened from there
MAX_BYTES = 1_000_000
_KINDS: Mapping[str, tuple[type, str]] = {
    "url": (str, "a text"),
    "storage_options": (dict, "a table"),
    "settings": (dict, "a table"),
    "write": (bool, "true or false"),
    "attach": (dict, "a table"),
}


@dataclass(frozen=True)
class Profile:
    """A store with a name: its URL, how it is reached, settings, whether statements may write, and what is attached.

    ``attach`` has type, URL and options by the name of the table.
    """

    name: str
    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    write: bool = False
    attach: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """What a config file holds; ``shell`` holds its options of the shell, not yet checked."""

    path: str
    attach: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    shell: Mapping[str, Any] = field(default_factory=dict)

    def profile(self, name: str) -> Profile:
        """Return a profile; raises ``unknown-profile``."""
        found = self.profiles.get(name)
        if found is None:
            listed = f"Profiles: {', '.join(self.profiles)}." if self.profiles else "The file has no profiles."
            hint = did_you_mean(name, self.profiles, listed)
            raise UsageError(f"There is no profile {name!r} in {self.path}.", code="unknown-profile", hint=hint)
        return found


def path() -> str:
    """Return the path of the config file: what ``KARTOSQL_CONFIG`` says, else the system's place for it."""
    given = os.environ.get(CONFIG)
    if given:
        return os.path.abspath(os.path.expanduser(given))
    import platformdirs

    return os.path.join(platformdirs.user_config_dir("kartosql"), FILE)


def folder() -> str:
    """Return the folder of the config file and of saved statements, which need not exist."""
    return os.path.dirname(path())


def read(place: str | None = None) -> Config:
    """Return what the config file holds; one that is not there is empty.

    Raises ``invalid-config`` with the place of what is wrong.
    """
    place = place or path()
    try:
        with open(place, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Config(place)
    except OSError as e:
        raise _invalid(place, f"cannot be read: {e.strerror or e}") from None
    if len(data) > MAX_BYTES:
        raise _invalid(place, f"has more than {MAX_BYTES:,} bytes")
    import tomllib

    try:
        found = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _invalid(place, "is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise _invalid(place, f"is no TOML: {e}") from None
    for name in found:
        if name not in ("profiles", "shell", "attach"):
            raise _invalid(place, f"has {name!r}, but only [shell], [attach.NAME] and [profiles.NAME] are known")
        if not isinstance(found[name], dict):
            raise _invalid(place, f"{name!r} is no table")
    profiles = {name: _profile(place, name, values) for name, values in found.get("profiles", {}).items()}
    attach = _attachments(place, "attach", found.get("attach", {}))
    return Config(place, attach, profiles, found.get("shell", {}))


def profile_names() -> list[str]:
    """Return the names of the profiles, none of a file that cannot be read."""
    try:
        return list(read().profiles)
    except UsageError:
        return []


def _profile(place: str, name: str, values: Any) -> Profile:
    where = f"[profiles.{name}]"
    if not isinstance(values, dict):
        raise _invalid(place, f"{where} is no table")
    for key, value in values.items():
        if key not in _KINDS:
            raise _invalid(place, f"{where} has {key!r}", did_you_mean(key, _KINDS))
        kind, expected = _KINDS[key]
        if not isinstance(value, kind):
            raise _invalid(place, f"{where}: {key} is not {expected}")
    if not values.get("url"):
        raise _invalid(place, f"{where} has no url")
    return Profile(
        name, **{**values, "attach": _attachments(place, f"profiles.{name}.attach", values.get("attach", {}))}
    )


def _attachments(place: str, where: str, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what is attached by name; relative paths begin in the folder of the file."""
    found = {}
    for name, options in values.items():
        url = options.get("url") if isinstance(options, dict) else None
        if not isinstance(url, str) or not url:
            raise _invalid(place, f"[{where}.{name}] has no url", "It has url, type and the options of ATTACH.")
        is_path = "://" not in url and not url.startswith("~")
        found[name] = {
            "type": "parquet",
            **options,
            "url": os.path.join(os.path.dirname(place), url) if is_path else url,
        }
    return found


def _invalid(place: str, what: str, hint: str | None = None) -> UsageError:
    about = "A profile has url, storage_options, settings, write and attach; .config lists the options of the shell."
    return UsageError(f"The config file {place} {what}.", code="invalid-config", hint=hint or about)


# -- places on the command line ----------------------------------------------------------------------


def resolve(place: str) -> Profile:
    """Return what a URL, folder or profile of the command line means, as a profile.

    ``@name`` is always a profile; a plain name is one unless a folder of that name is there.
    Raises ``unknown-profile`` and ``invalid-config``.
    """
    if place.startswith("@"):
        return read().profile(place[1:])
    # No URL, and no path of several parts.
    is_name = bool(place) and not any(c in place for c in ":/\\~.\0") and place.isprintable()
    found = read().profiles.get(place) if is_name and not os.path.exists(place) else None
    return found or Profile("", place)


def open_store(profile: Profile, options: Options) -> Connection:
    """Open the store of a profile; what the command line says comes before what the profile says."""
    from kartosql.opening import connect_as_owner
    from kartosql.settings import find

    writes = profile.write or options.write
    if writes:
        _check_new(profile.url)
    found = connect_as_owner(
        profile.url,
        storage_options={**profile.storage_options, **options.storage_options} or None,
        write=writes,
        **{find(name).name: value for name, value in {**profile.settings, **options.settings}.items()},
    )
    for name, given in {**read(os.path.abspath(PROJECT)).attach, **profile.attach}.items():
        more = {option: value for option, value in given.items() if option not in ("type", "url")}
        found._session.named.append((name, str(given["type"]).lower(), given["url"], more))
    return found


def _check_new(url: str) -> None:
    """Raise ``store-not-found`` for what would be a new store, where the name of a profile is like it."""
    from kartosql.store.urls import may_begin  # not at the top: a prompt waits for it

    root = os.path.abspath(url)
    is_new = "://" not in url and may_begin(root)
    if is_new and (close := closest(os.path.basename(root), read().profiles)):
        raise StoreError(f"{root!r} is no folder.", code="store-not-found", hint=f"Did you mean {close}?")


def write_shell(values: Mapping[str, Any]) -> str:
    """Replace the table ``[shell]`` of the config file, and leave all else as it is; returns the path.

    Raises OSError, and ``invalid-config`` for a file that cannot be read.
    """
    place = path()
    read(place)  # what is not understood is not written over
    try:
        with open(place, encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = []
    kept, inside = [], False
    for line in lines:
        if line.lstrip().startswith("["):
            inside = line.split("#")[0].strip() == "[shell]"
        if not inside:
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    # Of the values that options have, JSON and TOML have the same texts.
    table = ["[shell]", *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())]
    os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    with open(f"{place}.part", "w", encoding="utf-8") as file:
        file.write("\n".join([*kept, *([""] if kept else []), *table, ""]))
    os.replace(f"{place}.part", place)
    return place
