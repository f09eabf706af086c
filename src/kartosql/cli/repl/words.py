"""Words that are completed: keywords by where they stand, and functions."""

from __future__ import annotations

from kartosql.sql.functions import words
from kartosql.sql.parse import EXPORT_WORDS, SHOW_WORDS, WRITE_WORDS

STATEMENTS = (
    *("SELECT", "WITH", "FROM", "SHOW", "DESCRIBE", "EXPLAIN", "ADVISE", "VERIFY", "SET", "RESET", "SUMMARIZE"),
    *("ATTACH", "DETACH"),
    *WRITE_WORDS,
    *EXPORT_WORDS,
    "VALUES",
)
# What may follow a word; a word that is not here is followed by what its clause allows.
AFTER: dict[str, tuple[str, ...]] = {
    "SHOW": SHOW_WORDS,
    "EXPLAIN": ("SELECT", "ANALYZE", "COST", "WHY", "WITH", "FROM"),
    "COVERAGE": ("OF",),
    "ADVISE": ("SELECT", "WITH", "FROM"),
    "VERIFY": ("SELECT", "WITH", "FROM"),
    "CREATE": ("CUBE", "DATASET", "INDEX ON", "OR REPLACE"),
    "DROP": ("CUBE", "DATASET", "INDEX ON"),
    "ALTER": ("CUBE", "DATASET"),
    "COPY": ("CUBE", "DATASET"),
    "RECORD": ("SCHEMA FOR",),
    "EXPORT": ("SCHEMA HISTORY OF",),
    "HISTORY": ("FROM", "OF"),
    "METADATA": ("FROM",),
    "INSERT": ("INTO", "OVERWRITE"),
    "DELETE": ("FROM",),
    "GROUP": ("BY",),
    "ORDER": ("BY",),
    "PARTITION": ("BY",),
    "LEFT": ("JOIN", "OUTER JOIN"),
    "RIGHT": ("JOIN", "OUTER JOIN"),
    "FULL": ("JOIN", "OUTER JOIN"),
    "INNER": ("JOIN",),
    "CROSS": ("JOIN",),
    "OUTER": ("JOIN",),
    "IS": ("NULL", "NOT NULL", "DISTINCT FROM", "NOT DISTINCT FROM", "TRUE", "FALSE"),
    "NOT": ("IN", "LIKE", "BETWEEN", "EXISTS", "NULL"),
    "UNION": ("ALL", "SELECT"),
    "NULLS": ("FIRST", "LAST"),
}
EXPRESSION = (
    *("AND", "OR", "NOT", "IN", "IS", "BETWEEN", "LIKE", "ILIKE", "CASE", "WHEN", "THEN", "ELSE", "END", "CAST"),
    *("NULL", "TRUE", "FALSE", "EXISTS", "DISTINCT", "AS", "OVER", "INTERVAL", "DATE", "TIMESTAMP", "ASC", "DESC"),
)
CLAUSES = (
    *("FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "OFFSET", "QUALIFY", "JOIN", "LEFT JOIN", "ON"),
    *("INNER JOIN", "CROSS JOIN", "USING", "UNION", "UNION ALL", "INTERSECT", "EXCEPT", "WINDOW", "NULLS", "ALL"),
)
TABLES_AFTER = (
    *("FROM", "JOIN", "INTO", "OVERWRITE", "DESCRIBE", "DESC", "COMPACT", "CHECK", "CLEANUP", "SUMMARIZE", "TABLE"),
    *("OF",),
)

FUNCTIONS = sorted(
    words(
        """
    abs acos any_value arg_max arg_min array_agg array_length array_slice asin atan atan2 avg bit_and bit_count
    bit_or bool_and bool_or cardinality ceil century chr coalesce concat concat_ws contains corr cos count covar_pop
    covar_samp cume_dist current_date date_diff date_part date_trunc day dayname dayofmonth dayofweek dayofyear decade
    degrees dense_rank element_at ends_with entropy epoch epoch_ms even exp extract first first_value flatten floor
    format generate_series greatest group_concat hash histogram hour if ifnull instr isfinite isinf isnan isodow
    isoyear json_extract json_extract_string json_keys json_type kurtosis lag last last_day last_value lcase
    lead least left length levenshtein like_escape list list_aggregate list_concat list_contains list_distinct
    list_filter list_sort list_sum list_transform ln log log10 log2 lower lpad ltrim mad make_date make_timestamp
    map_keys map_values max md5 median microsecond min minute mode month monthname nth_value now ntile nullif parse_path
    percent_rank pi position pow power prefix printf product quantile_cont quantile_disc quarter radians random range
    rank regexp_extract regexp_full_match regexp_matches regexp_replace regexp_split_to_array repeat replace reverse
    right round row_number rpad rtrim second sha256 sign sin skewness split_part sqrt starts_with stddev stddev_pop
    stddev_samp strftime string_agg string_split strlen strptime struct_extract struct_pack substr substring suffix sum
    tan time_bucket timezone to_days to_hours to_json to_minutes to_months to_seconds to_timestamp to_years today
    translate trim trunc try_strptime typeof ucase unicode unnest upper uuid var_pop var_samp variance week weekday
    weekofyear year yearweek
    """
    )
)
