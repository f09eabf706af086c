"""Bloom filters that Spark itself makes, and what Spark reads of metadata of ours."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from kartosql.formats.xskipper import bloom
from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import layout_for
from kartosql.formats.xskipper.refreshing import Sources, refresh
from kartosql.formats.xskipper.scans import DataFile
from kartosql.store import Store
from skipping_data import might_contain


def _serialized(jvm: Any, value: Any) -> bytes:
    collected = jvm.java.io.ByteArrayOutputStream()
    stream = jvm.java.io.ObjectOutputStream(collected)
    stream.writeObject(value)
    stream.close()
    return bytes(collected.toByteArray())


@pytest.mark.parametrize(("version", "seed"), [("V1", 0), ("V2", 0), ("V2", 12345), ("V2", -7)])
def test_filters_are_those_of_spark_bit_for_bit(spark, version, seed):
    jvm = spark._jvm
    sketch = jvm.org.apache.spark.util.sketch
    versions = getattr(sketch, "BloomFilter$Version", None)
    if versions is None or not hasattr(versions, version):
        pytest.skip("this Spark has filters of one version only")
    rng = random.Random(seed)
    values = [rng.randrange(-(1 << 63), 1 << 63) for _ in range(20)]
    texts = ["".join(rng.choice("aé€\U0001f600z") for _ in range(rng.randrange(9))) for _ in range(20)]
    for items, bits in ((10, 640), (100, 5_000), (100_000, 958_528)):
        made = sketch.BloomFilter.create(getattr(versions, version), items, bits, seed)
        for value in values:
            made.putLong(value)
        for text in texts:
            made.putString(text)
        cell = _serialized(jvm, made)
        shape, words = bloom.words_of(cell)
        assert bloom.build([*values, *texts], shape) == words
        assert all(might_contain(cell, [v]) for v in [*values, *texts])
        assert bloom.CellLayout(cell).fits(cell)


def test_spark_reads_metadata_of_ours(spark, tmp_path):
    files = [DataFile(f"/lake/{n}", n, str(n), {"p": n}) for n in range(3)]

    def scan(keys: Any, columns: Any) -> Any:
        for number, key in enumerate(keys):
            yield number, pa.RecordBatch.from_pydict({"i": pa.array([int(key), 10]), "s": pa.array([f"v{key}", None])})

    specs = [IndexSpec("minmax", "i"), IndexSpec("valuelist", "s")]
    layout = layout_for("/lake", specs, {"i": pa.int32(), "s": pa.string()}, {"p": pa.int32()})
    refresh(Store(tmp_path), "meta", files, layout, Sources(scan))
    frame = spark.read.parquet(f"file://{tmp_path}/meta")
    assert json.loads(frame.schema.json()) == layout.described()
    found = sorted(
        tuple(row) for row in frame.selectExpr("obj_name", "virtual_p", "i_minmax_1.*", "s_valuelist_1").collect()
    )
    assert found == [(f"/lake/{n}#{n}", n, n, 10, [f"v{n}"]) for n in range(3)]
