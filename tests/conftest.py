"""Fixtures that several rooms share."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import shutil
import signal
import stat
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import builders
import golden
import tiers
from chromium import Browser
from kartosql.errors import UsageError
from kartosql.store import Store
from kartosql.write import recovery

# A run does not hang on how busy the machine is, nor on luck. --hypothesis-profile=default looks for other examples.
settings.register_profile(
    "steady", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# What one test keeps must not be what the user has, nor what the next run finds.
if "KARTOSQL_CACHE" not in os.environ:
    os.environ["KARTOSQL_CACHE"] = tempfile.mkdtemp(prefix="kartosql-cache-")
    atexit.register(shutil.rmtree, os.environ["KARTOSQL_CACHE"], ignore_errors=True)

# Thousands of small jobs: compiling them well, and on all cores, takes the JVM longer than running them does.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.mark(items)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == "quick":
        config.pluginmanager.register(tiers.Guard())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests file by file, and those of Spark together."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return tiers.group(super()._split_scope(nodeid))

    return Scheduling(config, log)


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Forget the stores in memory that a module made."""
    yield
    builders.forget_memory_stores()


@pytest.fixture(autouse=True)
def _own_sessions() -> Iterator[None]:
    """Let no connection find what one of another test left; other processes have none of it either."""
    yield
    if (pool := sys.modules.get("kartosql.session_pool")) is not None:
        pool.clear()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for a change that stands still: its writer is dead."""
    monkeypatch.setattr(recovery, "INTENT_SECONDS", 0.001)


@pytest.fixture(scope="session", autouse=True)
def _signals() -> None:
    """Let processes that tests start hear Ctrl-C and the end of a terminal, also in a run behind ``&`` or ``nohup``.

    What is ignored is ignored by children as well; what has a handler is not.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium with one page."""
    with contextlib.closing(Browser(tmp_path_factory.mktemp("chromium"))) as found:
        yield found


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Let no garbage be collected: finalizers, such as those of py4j, fail at the depth where parsers end."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def ktk_store() -> Path:
    return golden.find("kartothek/ktk_store")


@pytest.fixture(scope="session")
def plateau_store() -> Path:
    return golden.find("kartothek/plateau_store")


@pytest.fixture
def copy_of(ktk_store: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies golden datasets, by uuid prefix, into a store that can be changed."""

    def copy(*prefixes: str) -> Path:
        target = tmp_path / "copy"
        target.mkdir(exist_ok=True)
        for source in sorted(ktk_store.iterdir()):
            if source.name.startswith(prefixes):
                if source.is_dir():
                    shutil.copytree(source, target / source.name)
                else:
                    shutil.copy(source, target)
        for path in [target, *target.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IRWXU)
        return target

    return copy


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, once in a folder and once in memory."""
    if request.param == "local":
        return Store(str(tmp_path))
    return Store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


@pytest.fixture(scope="session")
def spark_of_the_run() -> Any:
    """The one Spark session of the whole run; without Java, CI fails and other runs skip."""
    from kartosql.engines.spark.session import session

    try:
        return session(master="local[2]", memory="1g")
    except UsageError as e:
        reason = f"{e.message} {e.hint}"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def spark(spark_of_the_run: Any) -> Any:
    return spark_of_the_run


@pytest.fixture(scope="session")
def spark_connect(spark_of_the_run: Any) -> Iterator[Any]:
    """A session of Spark Connect, whose server is in the JVM of the one Spark session."""
    from pyspark.sql.connect.session import SparkSession

    spark = spark_of_the_run
    context = spark._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1").set("spark.connect.grpc.binding.port", "0")
    server = getattr(getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    server.start(context)
    remote = SparkSession.builder.remote(f"sc://127.0.0.1:{server.localPort()}").create()
    yield remote
    remote.stop()
    nothing = getattr(spark._jvm, "scala.Option").empty()
    server.stop(nothing, nothing)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The instances of DuckDB that are made, in order."""
    from kartosql.engines.duckdb import runtime

    found: list[Any] = []

    class Noted(runtime.Instance):
        is_closed = False  # noted, as an engine that is asked cannot be closed at the same time

        def close(self) -> None:
            super().close()
            self.is_closed = True

        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            found.append(self)

    monkeypatch.setattr(runtime, "Instance", Noted)
    return found
