"""Values on which engines differ, and expressions over them that Spark claims to answer as DuckDB does."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN, INF = float("nan"), float("inf")
UTC = dt.timezone.utc

_COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [127, -128, 0, 1, -1, 5]),
    "i16": (pa.int16(), [32767, -32768, 0, 1, -1, 7]),
    "i32": (pa.int32(), [2**31 - 1, -(2**31), 0, 1, -1, 12345]),
    "i64": (pa.int64(), [2**63 - 1, -(2**63), 0, 1, -1, 2**53 + 1]),
    "u8": (pa.uint8(), [255, 0, 1, 127, 128, 200]),
    "u16": (pa.uint16(), [65535, 0, 1, 32768, 5, 9]),
    "u32": (pa.uint32(), [2**32 - 1, 0, 1, 2**31, 5, 9]),
    "u64": (pa.uint64(), [2**64 - 1, 0, 1, 2**63, 5, 9]),
    "n": (pa.int32(), [-7, -3, -2, -1, 0, 1, 2, 3, 5, 10, 100]),
    "k": (pa.int64(), [3, -3, 2, -2, 7, 1, -1, 5, 10, 4]),
    "f": (pa.float32(), [NAN, INF, -INF, -0.0, 0.0, 0.1, 1.5, 2.5, -2.5, 3.4e38, 1e-45, 16777217.0]),
    "g": (
        pa.float64(),
        [
            NAN,
            INF,
            -INF,
            -0.0,
            0.0,
            0.1,
            0.5,
            1.5,
            2.5,
            -0.5,
            -1.5,
            -2.5,
            2.675,
            1.005,
            1e300,
            -1e-300,
            123456789.987,
            0.49999999999999994,
            4503599627370498.0,
            9007199254740992.0,
            -1234.5678,
        ],
    ),
    "r": (pa.float64(), [0.25, 0.5, 1.0, 2.0, 10.0, 100.0, 0.001, 3.7, 12.34, 999.5]),
    "d": (
        pa.decimal128(9, 2),
        list(map(Decimal, ["1.25", "-1.25", "0.00", "9999999.99", "-0.01", "2.50", "0.05", "3.50"])),
    ),
    "e": (
        pa.decimal128(18, 3),
        list(map(Decimal, ["1.005", "-999999999999.999", "0.000", "12.500", "-7.777", "2.500"])),
    ),
    "big": (pa.decimal128(38, 10), list(map(Decimal, ["1.0000000001", "-12345678901234567890.1234567891", "0E-10"]))),
    "s": (
        pa.string(),
        [
            "",
            " ",
            "a",
            "A",
            "abc",
            "ABC",
            " a b ",
            "Äß",
            "x%y",
            "a_b",
            "a\\b",
            "a\\%b",
            "it's",
            "日本語",
            "😀x",
            "é",
            "tab\t",
            "Σίσυφος ΟΔΟΣ",
            "Straße",
            "ÖÉŁ",
            "İstanbul",
            "${x}",
            '"q"',
            "a,b",
            "1",
            "null",
            "aaa",
            "abab",
            "\xa0x\xa0",
            "Z",
            "~",
        ],
    ),
    "w": (pa.string(), ["a", "b", "", "%", "_b", "abc", "A", "日", "x", "\\"]),
    "digits": (pa.string(), ["1", "-5", "0", "42", "007"]),
    "day": (pa.string(), ["2020-02-29", "1999-12-31", "0001-01-01", "9999-12-31"]),
    "b": (pa.bool_(), [True, False]),
    "dt": (
        pa.date32(),
        [
            dt.date(1970, 1, 1),
            dt.date(1969, 12, 31),
            dt.date(2000, 2, 29),
            dt.date(2020, 1, 31),
            dt.date(2024, 12, 30),
            dt.date(1, 1, 1),
            dt.date(9999, 12, 31),
            dt.date(1582, 10, 10),
            dt.date(2021, 1, 3),
            dt.date(1900, 3, 1),
        ],
    ),
    "dt2": (pa.date32(), [dt.date(2020, 3, 1), dt.date(2019, 12, 31), dt.date(1970, 1, 2), dt.date(2000, 2, 28)]),
    "ts": (
        pa.timestamp("us"),
        [
            dt.datetime(1970, 1, 1),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
            dt.datetime(2020, 2, 29, 12, 30, 15, 123456),
            dt.datetime(2020, 3, 29, 2, 30),
            dt.datetime(1, 1, 1),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
            dt.datetime(1900, 1, 1, 0, 0, 1),
            dt.datetime(2024, 1, 31, 1, 2, 3, 120000),
            dt.datetime(2020, 10, 25, 2, 30),
        ],
    ),
    "ts2": (
        pa.timestamp("us"),
        [dt.datetime(2020, 2, 28, 23), dt.datetime(1969, 1, 1, 0, 0, 0, 1), dt.datetime(2021, 1, 1)],
    ),
    "tz": (
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(1970, 1, 1, tzinfo=UTC),
            dt.datetime(2020, 3, 29, 1, 0, tzinfo=UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 1, UTC),
            dt.datetime(2020, 10, 25, 0, 30, tzinfo=UTC),
            dt.datetime(2020, 6, 30, 23, 30, 0, 5, UTC),
        ],
    ),
    "x": (pa.binary(), [b"", b"\x00\xff", b"abc", b"\x80"]),
    "l": (pa.list_(pa.int64()), [[], [1], [1, None, 3], [None], [3, 2, 1]]),
    "st": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"a": 2, "b": None}],
    ),
}


def table(rows: int = 60) -> pa.Table:
    """Return a table of nasty values: each column goes through its own, NULL among them, at a pace of its own."""
    arrays: dict[str, pa.Array] = {"id": pa.array(range(rows), pa.int32())}
    for name, (type_, values) in _COLUMNS.items():
        cycle = [*values, None]
        arrays[name] = pa.array([cycle[i % len(cycle)] for i in range(rows)], type_)
    return pa.table(arrays)


# One expression a line. Each is answered for all rows, or refused; DuckDB answers all of them.
EXPRESSIONS = r"""
n + 1
n - k
n * k
n + 1.5
n * 2.5
-n
-d
+n
n / k
n / 0
k / 2
i64 / 3
d / 3
d / e
g / r
g / 0
r / 0
-r / 0
f / 2
f / 0
r / n
n // 2
k // 3
n // k
k // -2
n % 3
k % 3
n % k
k % -2
d % 2
d + e
d - e
n::decimal(6,2)
d + 1
d * 2
e * 1.1
d + 0.001
d - n
d * n
g + 1
g - r
g * 2
g * 0
f + 1
f * 2
f - g
g + d
i8 + 0
u32 + 0
u64 - 0
u8 * 1
i64 = 9007199254740993
i64 = 9007199254740993::double
i64 > 1.5
i64 < g
u64 > i64
u64 = 18446744073709551615
f = 0.1
f = 0.1::double
f = g
g = 0
g = -0.0::double
g = 'nan'::double
g > 5
g < 'nan'::double
g <> 1
g >= 1e300
f > 1
d = 1.25
d > e
d = 1.25::double
d < n
big > 1
big + 1
big - d
d between 0 and 2.5
n between -2 and k
n not between 0 and 5
n in (1, 2, 3)
n not in (1, 2, null)
n in (1, 2.5, null)
g in (0, 1.5, 'nan'::double)
s in ('a', 'A', null)
s not in ('a', 'b')
dt in (date '1970-01-01', '2020-01-31')
n is null
n is not null
n is distinct from k
s is not distinct from w
g is not distinct from 'nan'::double
n = k
n <> k
s = w
s < w
s > 'a'
s >= 'Z'
s <> ''
b = true
b and n > 0
b or n > 0
not b
(n > 0) is true
(n > 0) is not true
(n > 0) is false
(n > 0) is not false
b > false
case when n > 0 then 'p' when n < 0 then 'n' else '0' end
case n when 1 then 10 when 2 then 2.5 end
case when b then n else g end
case when b then d else e end
if(b, n, k)
coalesce(n, k, 0)
coalesce(s, w)
coalesce(d, e, 0)
ifnull(n, 7)
nullif(n, 1)
nullif(s, 'a')
nullif(g, 0)
greatest(n, k)
least(n, k, 0)
greatest(s, w)
greatest(g, r)
least(g, r, 1)
greatest(dt, dt2)
abs(n)
abs(g)
abs(d)
abs(f)
sign(n)
sign(g)
sign(d)
floor(g)
ceil(g)
ceiling(g)
floor(f)
ceil(f)
floor(d)
ceil(d)
floor(n)
trunc(g)
trunc(d)
round(g)
round(g, 0)
round(g, 1)
round(g, 2)
round(r, 2)
round(g, -2)
round(d)
round(d, 1)
round(d, 0)
round(d, -1)
round(e, 2)
round(n)
round(n, 1)
round(f)
round(f, 1)
sqrt(r)
sqrt(n)
ln(n)
log10(n)
log2(n)
acos(n)
asin(r)
sin(g)
tan(g)
exp(g)
pow(g, g)
pow(g, 0)
pow(1, g)
pow(-1, g)
pow(r / r, ln(g))
log(g)
cosh(g)
sqrt(abs(g))
cbrt(r)
exp(r / 100)
ln(r)
log(r)
log10(r)
log2(r)
pow(r, 2)
power(n, 2)
pow(r, 0.5)
r ** 2
r ^ 2
sin(r)
cos(r)
tan(r)
asin(r / 1000)
acos(r / 1000)
atan(g)
atan2(r, g)
atan2(g, f)
atan2(-g, -g)
sinh(r / 1000)
cosh(r / 1000)
tanh(r)
degrees(r)
radians(r)
pi()
isnan(g)
isinf(g)
isfinite(g)
isnan(f)
n & 3
n | 4
xor(n, 5)
~n
i64 & 1
mod(k, 3)
n::bigint
n::smallint
n::double
n::float
n::decimal(10,2)
n::boolean
n::varchar
(d / 1e8)::decimal(4,4)::varchar
0.05::decimal(2,2) || s
(g * 'nan'::double) > 1
n::hugeint
n::tinyint
i64::hugeint
i64::double
i64::varchar
i64::float
u64::varchar
u64::double
u8::integer
u32::bigint
u64::hugeint
abs(k)::uinteger
r::integer
r::bigint
(r + 0.5)::integer
(n + 0.5::double)::integer
(n + 0.5::double)::bigint
(n + 0.5)::integer
(k - 0.5)::integer
d::integer
d::bigint
d::double
e::double
e::decimal(18,1)
e::decimal(18,2)
d::decimal(18,4)
d::varchar
e::varchar
big::varchar
d::boolean
r::float
f::double
r::decimal(9,2)
round(r * 7.77, 3)::decimal(18,3)
b::integer
b::varchar
b::double
b::bigint
dt::varchar
dt::timestamp
ts::date
ts::varchar
tz::date
tz::timestamp
ts::timestamptz
dt::timestamptz
digits::integer
digits::bigint
digits::double
digits::smallint
day::date
day::timestamp
day = dt
dt = '2020-01-31'
dt > '2000-01-01'
ts >= '2020-02-29 12:30:15'
ts = '2020-02-29'
digits = 42
n = '5'
g = '1.5'
n::varchar || s
s || w
s || null
concat(s, w)
concat(s, null, n)
concat_ws('-', s, w, null)
lower(s)
upper(w)
lcase(s)
ucase(w)
length(s)
len(s)
char_length(s)
strlen(s)
bit_length(s)
substring(s, 1, 2)
substring(s, 2)
substr(s, 2, 1)
substr(s, 1, 0)
substring(s, 100)
s[1]
s[1:2]
s[2:3]
s[3:2]
s[5]
left(s, 2)
right(s, 2)
left(s, 0)
right(s, 0)
trim(s)
reverse(digits)
ltrim(s)
rtrim(s)
trim(s, 'a')
trim(s, ' a')
ltrim(s, 'ab')
rtrim(s, 'b')
lpad(s, 5, '*')
rpad(s, 5, '*')
lpad(s, 2, 'x')
rpad(s, 0, 'x')
replace(s, 'a', 'xx')
replace(s, '', 'y')
replace(s, 'a', '')
repeat(w, 3)
repeat(w, 0)
repeat(w, -1)
contains(s, 'a')
contains(s, '')
contains(s, w)
starts_with(s, 'a')
prefix(s, w)
suffix(s, 'b')
ends_with(s, w)
instr(s, 'b')
strpos(s, w)
position('b' in s)
ascii(s)
unicode(s)
ord(w)
md5(s)
sha256(s)
s like 'a%'
s like '%b%'
s like '_'
s like 'a\b'
s like 'a\%b'
s like '%\%'
s like 'x!%y' escape '!'
s like 'a$_b' escape '$'
s not like 'a%'
s like w
s ilike 'A%'
s ilike 'abc'
s not ilike '%B%'
s like ''
s like '%'
s like 'x_y'
s ~~ 'a%'
s like '日%'
s like '%$%'
s like '_x'
s like 'a.c'
s similar to 'a.*'
regexp_matches(s, 'a')
regexp_matches(s, '^a.*c$')
regexp_matches(s, '[A-Z]+')
regexp_matches(s, 'a|b')
regexp_matches(s, '(ab)+')
regexp_matches(s, '\d')
regexp_full_match(s, 'a')
regexp_full_match(s, '[a-c]*')
s ~ 'ab'
regexp_replace(s, 'a', 'x', 'g')
regexp_replace(s, 'a', 'x')
regexp_replace(s, '[a-c]+', '-', 'g')
regexp_replace(s, 'a|ab', '', 'g')
regexp_extract(s, 'a(b)', 1)
regexp_extract(s, '[A-Z]+')
regexp_matches(s, '\w')
regexp_matches(s, '^[^a]')
year(dt)
month(dt)
day(dt)
quarter(dt)
week(dt)
weekofyear(dt)
dayofweek(dt)
weekday(dt)
isodow(dt)
dayofyear(dt)
dayofmonth(dt)
isoyear(dt)
decade(dt)
century(dt)
year(ts)
month(ts)
hour(ts)
minute(ts)
second(ts)
millisecond(ts)
microsecond(ts)
week(ts)
extract(dow from dt)
extract(isodow from ts)
extract(doy from ts)
extract(epoch from ts)
date_part('year', ts)
date_part('month', dt)
date_part('week', dt)
date_part('hour', ts)
year(tz)
hour(tz)
date_part('minute', tz)
date_trunc('year', dt)
date_trunc('quarter', dt)
date_trunc('month', dt)
date_trunc('week', dt)
date_trunc('day', dt)
date_trunc('month', ts)
date_trunc('week', ts)
date_trunc('day', ts)
date_trunc('hour', ts)
date_trunc('minute', ts)
date_trunc('second', ts)
date_trunc('millisecond', ts)
date_trunc('month', tz)
date_trunc('decade', dt)
date_trunc('century', ts)
date_trunc('hour', dt)
date_trunc('microsecond', ts)
hour(dt)
epoch(dt)
date_diff('hour', dt2, dt)
age(dt2, dt)
ts - ts2
ts - ts2 > interval 1 day
dt + (dt2 - ts)
date_diff('decade', ts2, ts)
date_part('millennium', ts)
dt2 + 1
dt2 - 1
dt2 + n
n + dt2
dt - dt2
dt2 - date '2020-01-01'
dt2 + interval 1 day
dt2 + interval 1 month
dt2 - interval 1 month
dt2 + interval '1 year 2 months 3 days'
dt2 + interval 5 hour
ts2 + interval 1 day
ts2 + interval 1 month
ts2 - interval 1 month
ts2 - interval '1 month 2 days 03:04:05.678'
ts2 + interval 90 minute
ts2 - interval 1 microsecond
interval 1 day + ts2
date_diff('day', dt2, dt)
date_diff('month', dt2, dt)
date_diff('year', dt2, dt)
date_diff('quarter', dt2, dt)
date_diff('week', dt2, dt)
datediff('day', ts2, ts)
date_diff('month', ts2, ts)
date_diff('hour', ts2, ts)
date_diff('minute', ts2, ts)
date_diff('second', ts2, ts)
date_diff('week', ts2, ts)
date_diff('millisecond', ts2, ts)
date_diff('microsecond', ts2, ts)
date_diff('week', timestamp '2020-01-05 23:00', ts)
date_diff('hour', tz, tz + interval 100 minute)
last_day(dt2)
last_day(ts2)
strftime(dt, '%Y-%m-%d')
strftime(ts, '%Y/%m/%d %H:%M:%S')
strftime(dt, '%Y%m')
strftime(ts, '%B %b %A %a %j %y %I %p %u %w %%')
strftime(ts, '%f')
strftime(ts, '%d.%m.%Y')
strftime(dt, 'year %Y')
monthname(dt)
dayname(dt)
make_date(2020, 2, abs(n) % 28 + 1)
dt < ts
dt = ts
dt::timestamp < tz
ts < tz
tz = ts
tz > timestamptz '2020-01-01 00:00:00+00'
ts > now()
dt < current_date
epoch(ts)
epoch_us(ts)
epoch(tz)
epoch_us(tz)
x = 'abc'::blob
octet_length(x)
l
len(l)
l[1]
l[2]
list_contains(l, 1)
l[-1]
l[n]
list_sum(l)
array_to_string(l, ',')
1 in l
[n, 1]
[n, null]
list_value(s, w)
st
st.a
st.b
st['a']
{'a': n, 'b': s}
{'a': n}.a
st.a + 1
l is null
st is null
struct_pack(q := n, r := s)
factorial(5)
chr(65)
string_split(s, 'a')
string_split(s, '.')
string_split(s, 'a_')
split_part(s, 'a', 1)
split_part(s, 'a', 2)
split_part(s, 'a', 5)
typeof(n)
try_cast(s as integer)
try_cast(n as tinyint)
try_cast(i32 as smallint)
try_cast(g as integer)
cast(null as integer)
null
1 + 1
'a' || 'b'
1.5 * 2
interval 1 day > interval 1 hour
date '2020-01-31' + interval 1 month
'2.7'::int
1e3::int
""".strip().split("\n")

# Spark would answer these differently, or not at all.
REFUSED = r"""
f + d
u8 // 2::utinyint
(u8 // 2::utinyint)::tinyint
s[2:]
replace(s, w, '#')
regexp_matches(s, '^\s*$')
date_sub('month', dt2, dt)
to_timestamp(r)
st = st
l = l
row(n, s)
hash(s)
random() between 0 and 0.5
[ts - ts]
to_json(ts)
s->>'$.a.b'
gcd(n, k)
even(r)
bar(r, 0, 10)
list(n)
string_agg(s)
approx_count_distinct(n)
entropy(n)
""".strip().split("\n")

# Answered with an error by both engines, or refused: overflow, domains, texts that are no numbers.
FAILING = r"""
i64 + 1
i32 * 2
i8 + i8
-i64
abs(i64)
i64 - 2
i64 * i64
n % 0
n // 0
i64 // -1
u8 + 1::utinyint
u8 - 1::utinyint
u64 + 1
u8::tinyint
i32::smallint
n::utinyint
g::integer
g::bigint
f::integer
i64::decimal(10,2)
d::tinyint
s::integer
s::date
s = 5
big * big
e::decimal(5,3)
1e300 * g::float
make_date(2020, 13, 1)
error('no')
u64::bigint
u32::integer
k::uinteger
""".strip().split("\n")
