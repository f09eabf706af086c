"""What kartosql keeps beside the data outlives writes, collections and cleanups of the original."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from writing.test_readback import original

# It may be the one that makes the environment of the originals.
pytestmark = pytest.mark.timeout(900)

CUBE = kartosql.Cube("c", ["x"], ["p"], seed_dataset="seed")
# The original appends a row to a cube and to a plain dataset, and clears up behind itself.
WRITES = """
from functools import partial
import pandas as pd
from storefact import get_store_from_url
from kartothek.core.cube.cube import Cube
from kartothek.io.eager import garbage_collect_dataset, update_dataset_from_dataframes
from kartothek.io.eager_cube import append_to_cube, cleanup_cube
store = partial(get_store_from_url, "hfs://{folder}")
cube = Cube(uuid_prefix="c", dimension_columns=["x"], partition_columns=["p"], seed_dataset="seed")
frame = pd.DataFrame({{"x": [1000], "p": [99], "v": [5000]}})
append_to_cube(data=frame, cube=cube, store=store)
cleanup_cube(cube=cube, store=store)
update_dataset_from_dataframes([frame], store=store, dataset_uuid="d", partition_on=["p"])
garbage_collect_dataset(dataset_uuid="d", store=store)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a cube and a dataset of ours, to which the original has appended since."""
    made = tmp_path_factory.mktemp("beside")
    table = pa.table({"x": range(400), "p": [i // 50 for i in range(400)], "v": [i * 3 for i in range(400)]})
    with kartosql.connect(made) as con:
        con.build_cube(CUBE, {"seed": table})
        con.create_dataset("d", table, partition_on="p")
        for name in ("c.seed", "d"):
            con.sql(f"CREATE SKIPPING INDEX ON {name} (MINMAX(v))")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [original(), "-W", "ignore", "-c", WRITES.format(folder=made)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return made


@pytest.fixture
def connection(folder: Path) -> Any:
    with kartosql.connect(folder) as made:
        yield made


@pytest.mark.parametrize("name", ["c.seed", "d"])
def test_skipping_indexes_still_leave_out_files(connection, name):
    assert connection.sql(f"SHOW SKIPPING INDEXES FROM {name}").rows()[0][-2:] == (8, 9)
    sql = f"SELECT x FROM {name} WHERE v = "
    assert connection.explain(sql + "300").files_selected == 2  # the one that holds it, and the new one
    assert connection.sql(sql + "300").rows() == [(100,)]
    assert connection.sql(sql + "5000").rows() == [(1000,)]
    assert connection.refresh_skipping_index(name)["added"] in (0, 1)
    assert connection.sql(f"SHOW SKIPPING INDEXES FROM {name}").rows()[0][-2:] == (9, 9)


@pytest.mark.parametrize("name", ["c.seed", "d"])
def test_the_schema_history_is_still_there_and_marked_as_stale(connection, name):
    history = connection.sql(f"SHOW SCHEMA HISTORY FROM {name}").arrow()
    assert history["version"][0].as_py() == 1
    assert history["block"][0].as_py().startswith("f1620")
    sealed = connection._session.snapshot().dataset("c++seed" if name == "c.seed" else name)
    from kartosql.formats.kartothek.history import history_of, is_sealed

    found = history_of(sealed.document)
    assert found is not None
    assert not is_sealed(found, sealed.document)
