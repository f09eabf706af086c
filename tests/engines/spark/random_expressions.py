"""Random rows of many types, and random expressions, aggregates and window functions over them."""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa

ROWS = 80
NAN, INF = float("nan"), float("inf")
_CHARACTERS = [*"abAB019 %_\\'\"ßé日😀\n\t${x-.eİſΣ", "\u00a0", "\u2003", "ﬁ"]
# Columns by kind: integers, unsigned ones, floats, decimals, texts, booleans, dates, times, with a zone, bytes, nested.
COLUMNS = {
    "i": "i8 i16 i32 i64 n k", "u": "u8 u16 u32 u64", "F": "f g r", "d": "d1 d2 d3 d4 d5 d6", "s": "s w", "b": "b",
    "D": "dt dt2", "T": "ts ts2", "Z": "tz", "x": "x", "l": "l ls", "t": "st",
}  # fmt: skip
CONSTANTS = {
    "i": "0|1|-1|3|127|128|-128|2147483647|-2147483648|9223372036854775807|NULL::int",
    "u": "0::utinyint|7::uinteger|255::utinyint|18446744073709551615",
    "F": "0.0::double|-0.0::double|2.5e0|'nan'::double|'inf'::double|1e-5::double|0.1::float|NULL::double",
    "d": "0.1|2.5|-0.05|1.000|99999999.99|1e2::decimal(5,1)|NULL::decimal(5,2)",
    "s": r"''|'a'|'%'|'a%'|'_b'|' '|'é'|'\'|'1'|NULL::varchar",
    "b": "true|false|NULL::boolean",
    "D": "date '2020-02-29'|date '1969-12-31'|date '0001-01-01'|NULL::date",
    "T": "timestamp '2020-02-29 12:34:56.789'|timestamp '1969-12-31 23:59:59.999999'",
    "Z": "timestamptz '2020-03-29 01:30:00+00'", "x": r"'\x00'::blob|''::blob", "l": "[1,2]|[]::bigint[]",
    "t": "{'a':1,'b':'x'}",
}  # fmt: skip
_PARTS = (
    "year|month|day|quarter|week|dow|isodow|doy|isoyear|century|decade|millennium|epoch|hour|minute|second|"
    "millisecond|microsecond|yearweek"
)
_ANY = {
    "i": "(<i> «+|-|*|//|%|&|<<|>>» <i>)~abs(<i>)~(-<i>)~(~<i>)~<N>::«tinyint|smallint|int|bigint»~sign(<N>)~"
    "try_cast(<N> AS «tinyint|smallint|int|bigint»)~«length|strlen|ascii|unicode|bit_length»(<s>)~instr(<s>, <s>)~"
    f"date_part('«{_PARTS}»', <D>)~date_part('«{_PARTS}»', <T>)~date_diff('«{_PARTS}»', <T>, <T>)~"
    f"date_diff('«{_PARTS}»', <D>, <D>)~(<D> - <D>)~«year|month|day|week|dayofweek|dayofyear|quarter|century»(<D>)~"
    "«hour|minute|second|epoch_us|millisecond|microsecond|decade|yearweek»(<T>)~nullif(<i>, <i>)~len(<l>)~"
    "l[«1|2|-1|0|n»]~list_«sum|max|min|count|unique»(l)~st.a~greatest(<i>, <i>, <i>)~gcd(<i>, <i>)~<s>::int~"
    "try_cast(<s> AS int)~levenshtein(<s>, <s>)~<b>::int~octet_length(<x>)~if(<b>, <i>, <i>)~xor(<i>, <i>)",
    "u": "(<u> «+|-|*|//|%» <u>)~<N>::«utinyint|usmallint|uinteger|ubigint»~greatest(<u>, <u>)~"
    "try_cast(<N> AS «utinyint|uinteger|ubigint»)",
    "F": "(<F> «+|-|*|/|%» <F>)~(<N> «/|+|-|*» <N>)~<N>::«double|float»~try_cast(<N> AS «double|float»)~"
    "«sqrt|ln|log|log2|log10|exp|cbrt|sin|cos|tan|atan|asin|sinh|cosh|tanh|radians|degrees»(<F>)~"
    "«abs|floor|ceil|trunc|round|even|sign|gamma|lgamma|cot»(<F>)~round(<F>, «0|1|2|-1|15|n»)~«pow|atan2»(<F>, <F>)~"
    "epoch(<T>)~«greatest|least»(<F>, <F>, <F>)~nullif(<F>, <F>)~list_avg(l)~try_cast(<s> AS double)~(-<F>)",
    "d": "(<d> «+|-|*|%|//» <d>)~(<d> «+|-|*» <i>)~<N>::decimal(«5,2|18,3|38,10|9,0|38,0|4,4»)~round(<d>, «0|1|-1|5»)~"
    "«abs|floor|ceil|trunc|round»(<d>)~(-<d>)~«greatest|least»(<d>, <d>)~nullif(<d>, <d>)",
    "s": "(<s> || <s>)~concat(<s>, <N>, <s>)~concat_ws(<s>, <s>, <s>)~«lower|upper|trim|ltrim|rtrim|reverse|md5»(<s>)~"
    "substr(<s>, «1|2|0|-1|n|k»)~substring(<s>, «1|2|-2|k», «0|1|3|-1|n»)~«left|right»(<s>, «0|1|2|-1|n»)~"
    "replace(<s>, <s>, <s>)~lpad(<s>, «0|2|5», '«*|ab»')~repeat(<s>, «0|2|-1|n»)~split_part(<s>, <s>, «1|2|-1»)~"
    r"regexp_replace(<s>, '«a|[ab]+|.|^a|b$|(a)(b)|\d»', '«x|\1|$1|»')~translate(<s>, <s>, <s>)~trim(<s>, <s>)~"
    "regexp_replace(<s>, '«a|[ab]+|.»', 'x', 'g')~regexp_extract(<s>, '«a|[ab]+|(a)(b)?|.$»'«, 1|, 0|»)~"
    "«<i>|<u>|<d>|<b>|<D>|<T>»::varchar~strftime(<D>, '%Y-%m-%d %y %j %«A|B|a|b|u|w|U|G»')~"
    "strftime(<T>, '%H:%M:%S %«f|I|p|g|L|s»')~«dayname|monthname»(<T>)~«greatest|least»(<s>, <s>)~nullif(<s>, <s>)~"
    "ls[«1|-1|n»]~st.b~format('{}-{}', <s>, <i>)~printf('%s', <s>)",
    "b": "(<N> «=|<>|<|<=|>|>=|IS DISTINCT FROM» <N>)~(<s> «=|<>|<|>=» <s>)~(<D> «=|<|>=» <D>)~(<T> «=|<|>» <T>)~"
    "(<x> = <x>)~(<b> «AND|OR|=|<>» <b>)~(NOT <b>)~(<F> IS «NOT |»NULL)~(<i> IN (<i>, <i>, NULL))~(<s> IN ('a', <s>))~"
    "(<N> «NOT |»BETWEEN <N> AND <N>)~(<s> «NOT |»LIKE <s>)~(<s> ILIKE «'a%'|'_B'|'É'»)~"
    "«starts_with|contains»(<s>, <s>)~"
    r"regexp_matches(<s>, '«a|[ab]+$|^.$|\d|a\|b|[^a]»')~<N>::boolean~«isnan|isinf|isfinite»(<F>)~"
    "list_contains(l, <i>)~(<b> IS «TRUE|NOT FALSE»)~ends_with(<s>, <s>)~(<F> IN (<F>, <F>))",
    "D": "(<D> «+|-» «1|n|-400»)~<T>::date~last_day(<D>)~make_date(2000 + n, k, 1)~greatest(<D>, <D>)",
    "T": "(<T> «+|-» INTERVAL '«1 day|13 months|-1 year|1 hour|90 minutes|1 month 2 days 3 hours|1 microsecond»')~"
    f"(<D> «+|-» INTERVAL '«1 day|1 month|36 hours»')~date_trunc('«{_PARTS}»', <T>)~<D>::timestamp~<Z>::timestamp",
    "Z": "(<Z> + INTERVAL '«1 day|1 month|1 hour»')~date_trunc('«year|month|week|day|hour»', <Z>)~<T>::timestamptz",
    "x": "(<x> || <x>)~encode(<s>)",
    "l": "[<i>, <i>]~list_«sort|distinct|reverse»(l)~list_transform(l, lambda y: y + 1)~l[1:2]~string_split(<s>, <s>)",
    "t": "{'a': <i>, 'b': <s>}",
}
_AGGREGATES = {
    "i": "sum|avg|min|max|count|bit_and|bit_or|bit_xor|stddev|var_pop|product|median|mode",
    "u": "sum|avg|min|max|count",
    "F": "sum|avg|min|max|count|stddev|var_samp", "d": "sum|avg|min|max|count|stddev", "s": "min|max|count|first|mode",
    "b": "bool_and|bool_or|count|count_if|min|max|sum", "D": "min|max|count", "T": "min|max|count", "Z": "min|max",
    "x": "min|max|count", "l": "count|min",
}  # fmt: skip
_WINDOWS = (
    "row_number()~rank()~dense_rank()~percent_rank()~cume_dist()~ntile(3)~lag(<A>)~lead(<A>, 2)~lag(<i>, 1, <i>)~"
    "«first_value|last_value»(<A>)~nth_value(<A>, 2)~sum(<N>)~avg(<N>)~«min|max|count»(<A>)~count(*)~stddev(<N>)~"
    "«last_value|lag|first_value»(<A> IGNORE NULLS)~bool_and(<b>)"
)
_FRAMES = (
    "||ROWS BETWEEN 2 PRECEDING AND CURRENT ROW|ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING|"
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING|RANGE UNBOUNDED PRECEDING|"
    "ROWS BETWEEN 3 FOLLOWING AND 5 FOLLOWING|ROWS BETWEEN 5 PRECEDING AND 3 PRECEDING"
)


class Expressions:
    """Random expressions; templates have ``<kind>`` for another one, and choices such as ``«a|b»``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def scalar(self, kind: str, depth: int = 2) -> str:
        """Return an expression of a kind; N is any number, A any value that is ordered."""
        pick = self._random.choice
        kind = pick("iuFd") if kind == "N" else pick("iuFdsbDT") if kind == "A" else kind
        if depth <= 0 or self._random.random() < 0.25:
            constant = self._random.random() < 0.2
            return pick(CONSTANTS[kind].split("|") if constant else COLUMNS[kind].split())
        common = [f"coalesce(<{kind}>, <{kind}>)", f"CASE WHEN <b> THEN <{kind}> ELSE <{kind}> END"]
        return self.filled(pick([*_ANY[kind].split("~"), pick(common)]), depth - 1)

    def filled(self, template: str, depth: int) -> str:
        """Return a template with all of its places filled."""
        chosen = re.sub("«([^»]*)»", lambda m: self._random.choice(re.split(r"(?<!\\)\|", m[1])), template)
        return re.sub("<([a-zA-Z])>", lambda m: self.scalar(m[1], depth), chosen.replace("\\|", "|"))

    def any(self) -> str:
        """Return an expression of any kind."""
        return self.scalar(self._random.choice("iiuFFdsssbbDTZxlt"), self._random.choice([1, 1, 2]))

    def aggregate(self) -> str:
        """Return an aggregate whose value hangs on no order."""
        kind = self._random.choice([*_AGGREGATES])
        distinct = self._random.choice(["", "", "", "DISTINCT "])
        joined = "string_agg(<s>, ',' ORDER BY <s>, id)"
        call = f"«{_AGGREGATES[kind]}»({distinct}<{kind}>)"
        return self.filled(f"{joined if self._random.random() < 0.1 else call}«||| FILTER (WHERE <b>)»", 1)

    def window(self) -> str:
        """Return a window function over rows in an order of their own."""
        call = self._random.choice(_WINDOWS.split("~"))
        frame = self._random.choice(_FRAMES.split("|"))
        order = "ORDER BY <A> «ASC|DESC|DESC NULLS LAST|ASC NULLS FIRST», id"
        return self.filled(f"{call} OVER («|PARTITION BY <A> »{order} {frame})", 1)


def table(seed: int) -> pa.Table:
    """Return random rows."""
    rng = random.Random(f"rows {seed}")
    arrays: dict[str, pa.Array] = {"id": pa.array(range(ROWS), pa.int32())}
    for name, type_ in _TYPES.items():
        arrays[name] = pa.array([None if rng.random() < 0.12 else _value(rng, name, type_) for _ in range(ROWS)], type_)
    return pa.table(arrays)


_DECIMALS = {"d1": (4, 1), "d2": (9, 2), "d3": (18, 6), "d4": (38, 0), "d5": (38, 20), "d6": (5, 5)}
_TYPES: dict[str, pa.DataType] = {
    "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(), "n": pa.int32(), "k": pa.int64(),
    "u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(), "f": pa.float32(),
    "g": pa.float64(), "r": pa.float64(), **{name: pa.decimal128(*size) for name, size in _DECIMALS.items()},
    "s": pa.string(), "w": pa.string(), "b": pa.bool_(), "dt": pa.date32(), "dt2": pa.date32(),
    "ts": pa.timestamp("us"), "ts2": pa.timestamp("us"), "tz": pa.timestamp("us", "UTC"), "x": pa.binary(),
    "l": pa.list_(pa.int64()), "ls": pa.list_(pa.string()), "st": pa.struct([("a", pa.int32()), ("b", pa.string())]),
}  # fmt: skip


def _value(rng: random.Random, name: str, type_: pa.DataType) -> Any:
    pick, t = rng.choice, pa.types
    small = {"n": (-12, 12), "k": (1, 9)}.get(name)
    if small:
        return rng.randint(*small)
    if t.is_integer(type_):
        bits = type_.bit_width - t.is_signed_integer(type_)
        low = -(2**bits) if t.is_signed_integer(type_) else 0
        return pick([low, 2**bits - 1, 0, 1, rng.randint(low, 2**bits - 1)])
    if t.is_floating(type_):
        near = [0.0, -0.0, NAN, INF, -INF, 5e-324, 1e16, 2.0**63, rng.uniform(-5, 5), rng.randint(-9, 9) / 2]
        return rng.uniform(0.01, 99) if name == "r" else pick(near)
    if t.is_decimal(type_):
        digits = pick([1, 2, type_.precision - 8 * (type_.precision == 38)])
        return Decimal(rng.randint(1 - 10**digits, 10**digits - 1)).scaleb(-type_.scale)
    if t.is_date(type_):
        return dt.date.fromordinal(rng.randint(1, 3652059) if name == "dt" else rng.randint(737000, 739000))
    if t.is_timestamp(type_):
        micros = rng.randint(-6 * 10**16, 2 * 10**17) if name == "ts" else rng.randint(-(10**15), 2 * 10**15)
        return dt.datetime(1970, 1, 1, tzinfo=type_.tz and dt.timezone.utc) + dt.timedelta(microseconds=micros)
    if t.is_list(type_):
        return [
            pick([None, _value(rng, "n" if name == "l" else "w", type_.value_type)]) for _ in range(rng.randint(0, 4))
        ]
    return {
        "s": lambda: "".join(pick(_CHARACTERS) for _ in range(pick([0, 1, 1, 2, 3, 5, 8]))),
        "w": lambda: pick(["a", "b", "ab", "", "%", "_", "a%", "1", "x"]),
        "b": lambda: rng.random() < 0.5,
        "x": lambda: bytes(rng.randrange(256) for _ in range(rng.randint(0, 4))),
        "st": lambda: {"a": pick([None, 1, 2]), "b": pick([None, "x", "y"])},
    }[name]()
