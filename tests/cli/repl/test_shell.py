from __future__ import annotations

import os
import re
import threading
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.cli.output import BEHIND
from kartosql.errors import KartosqlWarning
from kartosql.opening import connect


def test_a_statement_runs_at_its_semicolon_and_not_before(shell):
    assert shell("select 1 as a,") == ""
    assert shell("  2 as b") == ""
    found = shell(";")
    assert "│       1 │       2 │" in found
    assert re.match(r"1 row in \d+\.\d{3} s", found.splitlines()[-1])


def test_a_box_has_types_groups_and_null(shell):
    found = shell(".timing off\nselect country, amount from sales where day <= 2 order by amount;").splitlines()[1:]
    assert found == [
        "┌─────────┬─────────┐",
        "│ country │  amount │",
        "│ VARCHAR │  BIGINT │",
        "├─────────┼─────────┤",
        "│ DE      │ -20,000 │",
        "│ FR      │       7 │",
        "│ GB      │    2013 │",
        "│ DE      │  12,345 │",
        "│ GB      │  99,999 │",
        "│ FR      │    NULL │",
        "└─────────┴─────────┘",
    ]


def test_null_differs_from_the_text_and_control_characters_are_escaped(shell):
    found = shell("select name from shops order by shop;")
    assert "│ a\\x1b[31m │" in found
    assert "│ 'NULL'    │" in found
    assert "│ NULL      │" in found
    assert "\x1b" not in found


@pytest.mark.parametrize("mode", ["box", "vertical", "markdown", "csv", "tsv", "json", "jsonl", "html"])
def test_no_mode_lets_control_characters_or_bidi_marks_through(shell_over, mode):
    session = shell_over()
    session.screen.is_terminal = True
    session(f".mode {mode}")
    found = session("select 'a' || chr(27) || chr(8238) || 'b' as \"n\u202e\";")
    assert "\x1b" not in found.replace("\x1b[K", "")
    assert "\u202e" not in found


def test_what_is_too_wide_becomes_vertical(shell_over):
    session = shell_over(columns=30)
    assert session("select country, product, amount, rain from sales where amount = 7;").splitlines()[:5] == [
        "── row 1 ──",
        "country │ FR",
        "product │ apple",
        "amount  │ 7",
        "rain    │ 1.25",
    ]
    session(".config wide box")
    assert session("select country, product, amount, rain from sales where amount = 7;").startswith("┌")


def test_rows_that_are_not_shown_are_counted_and_kept(shell):
    shell(".config rows 3")
    found = shell("select range as r from range(12345);").splitlines()
    assert sum(line.startswith("│") for line in found) == 3 + 2
    assert found[-2] == "3 of 12,345 shown · .last shows all of them"
    every = shell(".last").splitlines()
    assert sum(line.startswith("│") for line in every) == 12345 + 2
    assert "shown" not in every[-1]


def test_formats_for_programs_are_never_shortened(shell):
    shell(".config rows 3\n.mode csv\n.timing off")
    assert shell("select range as r from range(1000);").splitlines() == ["r", *map(str, range(1000))]


def test_an_error_ends_a_pasted_text_and_the_shell_goes_on(shell):
    found = shell("select 1 as first; selext 2; select 3 as third;")
    assert "first" in found
    assert "error[syntax-error]: 'selext' is no statement." in found
    assert "hint: Did you mean SELECT?" in found
    assert "third" not in found
    assert "fourth" in shell("select 4 as fourth;")


def test_errors_show_the_place_in_the_text(shell):
    assert shell("select\n  contry from sales;").splitlines() == [
        "error[unknown-column]: There is no column 'contry'.",
        "LINE 2:   contry from sales",
        "          ^^^^^^",
        "hint: Did you mean country?",
        "see: .help unknown-column",
    ]


def test_commands_and_statements_may_be_pasted_together(shell):
    found = shell(".timing off\n.mode csv\nselect 1 as a;\n.mode jsonl\nselect 2 as b; select 3 as c;\n\\f box\n")
    assert [line for line in found.splitlines() if line[:1] in ("{", "a", "1")] == ["a", "1", '{"b":2}', '{"c":3}']


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (".modee", "Did you mean .mode?"),
        (".tabels", "Did you mean .tables?"),
        (".zzz", ".help lists the commands."),
        (r"\zz", ".help lists the commands."),
        (".co", "Did you mean .columns or .config or .copy or .cost or .coverage?"),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(shell, line, hint):
    found = shell(line).splitlines()
    assert found[0].startswith("error[unknown-command]")
    assert found[1] == f"hint: {hint}"


def test_the_beginning_of_a_command_is_enough_if_it_is_that_of_one_only(shell):
    assert "country = 'DE'" in shell(".part")


def test_words_of_other_shells_lead_to_help_and_out(shell):
    assert ".tables" in shell("help")
    with pytest.raises(SystemExit):
        shell("exit;")


def test_settings_and_parameters_reach_the_statements(shell):
    shell("set TimeZone = 'Asia/Tokyo';\n.param x 2\n.timing off\n.mode csv")
    assert shell("select current_setting_is_refused();").startswith("error")
    assert shell("select $x + 1 as y;") == "y\n3\n"
    assert shell("select 1 as y;") == "y\n1\n"


def test_one_result_or_all_of_them_go_to_a_file(shell, tmp_path):
    once, every = tmp_path / "once.json", tmp_path / "every.csv"
    assert shell(f".once {once}\nselect 1 as a;").splitlines()[0] == f"1 row written to {once}"
    assert once.read_text() == '[\n{"a":1}\n]\n'
    assert "│       2 │" in shell("select 2 as a;")
    shell(f".output {every}\nselect 3 as a;\nselect 4 as a;\n.output")
    assert every.read_text() == "a\n3\n4\n"
    assert "│       5 │" in shell("select 5 as a;")


@pytest.mark.parametrize("line", [".once x.txt", ".once", ".output x.parquet", ".output /no/such/folder/x.csv"])
def test_files_that_cannot_be_written_are_told_at_once(shell, line):
    assert shell(line).startswith("error[")


def test_a_file_of_statements_is_read(shell, tmp_path):
    script = tmp_path / "a b.sql"
    script.write_text(".mode csv\n.timing off\nselect 1 as a;\nselect 2 as b")
    assert shell(f".read '{script}'").splitlines()[1:] == ["timing: off", "a", "1", "b", "2"]
    script.write_text(f".read '{script}'")
    assert "ten deep" in shell(f".read '{script}'")
    script.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in shell(f".read '{script}'")


def test_statements_are_saved_run_with_values_and_forgotten(shell):
    shell(".mode csv\n.timing off")
    assert shell(".save cheap select country from sales where amount < $most order by 1;") != ""
    assert shell(".run cheap most=100").splitlines() == ["country", "DE", "FR"]
    assert shell(".run").startswith("cheap: select country from sales")
    shell("select 5 as five;\n.save five")
    assert shell(".run five") == "five\n5\n"
    shell(".forget five")
    assert "error[invalid-argument]: No statement 'five' is saved." in shell(".run five")
    assert shell(".save ../x").startswith("error[invalid-argument]")


@pytest.mark.process
def test_the_editor_writes_the_next_statement(shell, tmp_path, monkeypatch):
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\necho "select 7 as seven;" > "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    shell(".edit")
    assert shell.shell.draft == "select 7 as seven;"
    monkeypatch.setenv("VISUAL", "false")
    assert "failed" in shell(".edit")
    monkeypatch.setenv("VISUAL", "no-such-editor")
    assert "Cannot run the editor" in shell(".edit")


def test_a_chart_has_a_bar_for_each_row(shell_over):
    session = shell_over(columns=40)
    session("select country, sum(amount) as n from sales where amount > 0 group by 1 order by 1;")
    assert session(".chart").splitlines() == ["DE  12,345 ███▎", "FR       7", "GB 102,012 ███████████████████████████"]
    assert "holds no numbers" in session(".chart n country")
    assert "has no column 'x'" in session(".chart x")


def test_last_and_chart_need_a_result(shell):
    assert shell(".last").startswith("error[no-result]")
    assert shell(".chart").startswith("error[no-result]")


def test_nothing_is_written_without_being_allowed_to(shell):
    for line in (".delete sales", ".index shops name", ".cleanup sales"):
        assert "error[read-only]" in shell(line)
    assert os.path.exists(f"{shell.shell.connection.store.root}/sales++seed")


def test_a_cube_is_deleted_after_a_yes_only(shell_over, tmp_path):
    session = shell_over()
    session(f".copy sales {tmp_path / 'copy'}")
    session(f".open {tmp_path / 'copy'}")
    answers = iter(["n", "y"])
    session.shell.ask = lambda: next(answers)
    assert "Nothing is deleted." in session(".delete sales")
    assert "sales" in session.shell.connection.cubes()
    session(".delete sales")
    assert session.shell.connection.cubes() == {}


def test_query_gives_what_query_cube_gives(shell, sales):
    shell(".mode csv\n.timing off")
    found = shell('.query sales --where "amount > 100" --payload amount,rain')
    wanted = connect(sales).query_cube("sales", conditions="amount > 100", payload_columns=["amount", "rain"])
    assert len(found.splitlines()) - 1 == len(wanted) == 3
    assert found.splitlines()[0].split(",") == wanted.columns
    assert shell(".query --nope").startswith("error[invalid-argument]")


def test_info_tells_what_a_cube_is(shell):
    found = shell(".info")
    for part in (
        "UUID Prefix:        sales",
        "  - shop: BIGINT",
        "  - product: VARCHAR",
        "Dataset: weather",
        "  - rain: DOUBLE",
    ):
        assert part in found
    assert "is no cube" in shell(".info shops")


def test_another_store_is_opened_and_a_wrong_one_leaves_the_first(shell, tmp_path):
    assert "error[store-not-found]" in shell(f".open {tmp_path}/nowhere")
    assert "shops" in shell(".tables")
    assert "store: " in shell(f".open {tmp_path}")
    assert "shops" not in shell(".tables")


def test_options_are_set_refused_and_saved(shell, tmp_path):
    assert shell(".config rows 5") == "rows = 5\n"
    assert "expected a whole number" in shell(".config rows many")
    assert "Did you mean rows?" in shell(".config rowz")
    assert shell(".config threads 2") == "threads = 2\n"
    shell(".config theme light\n.config save")
    place = tmp_path / "config" / "config.toml"
    assert place.read_text() == '[shell]\nrows = 5\ntheme = "light"\n'
    place.write_text('[profiles.a]\nurl = "x"\n\n' + place.read_text() + '\n[profiles.b]\nurl = "y"\n')
    shell(".config rows 6\n.config save")
    assert place.read_text() == (
        '[profiles.a]\nurl = "x"\n\n[profiles.b]\nurl = "y"\n\n[shell]\nrows = 6\ntheme = "light"\n'
    )


def test_a_megabyte_half_a_quote_and_binary_data_are_calm(shell):
    assert "error[statement-too-long]" in shell(f"select '{'x' * 1_100_000}';")
    shell("select 'half")
    shell.shell.pending = ""
    assert "\\x00\\xFF" in shell("select '\\x00\\xFF'::BLOB as b;")
    assert "… (20,000 characters)" in shell("select repeat('x', 20000) as long;")


def test_a_megabyte_of_statements_is_split_in_good_time(shell):
    from kartosql.cli.repl.registry import is_ready

    text = "select 'a;b', 1 -- ;\n;" * 45_000
    assert is_ready(text)


@pytest.mark.parametrize("columns", [20, 30, 200])
def test_no_line_of_a_result_is_wider_than_the_terminal(shell_over, columns):
    session = shell_over(columns=columns)
    session(".config wide vertical")
    lines = session("select country, product from sales;").splitlines()[:-1]
    assert lines
    assert all(len(line) <= columns for line in lines)


def test_warnings_of_a_statement_are_told_and_those_of_the_background_are_not(shell):
    def warned() -> None:
        warnings.warn("something was left out", KartosqlWarning, stacklevel=1)

    shell.shell._guarded(lambda text: warned(), "")
    behind = threading.Thread(target=warned, name=BEHIND)
    shell.shell._guarded(lambda text: (behind.start(), behind.join()), "")
    assert shell.out.getvalue() == "warning: something was left out\n"


def test_a_folder_is_attached_listed_and_let_go(shell_over, tmp_path):
    session = shell_over()
    pq.write_table(pa.table({"shop": [1, 2], "size": [10, 20]}), tmp_path / "sizes.parquet")
    session(f".timing off\n.attach '{tmp_path}' sizes")
    assert "sizes" in session(".attach")
    assert "│     10 │" in session("select size from sizes join shops using (shop) where name like 'a%';")
    session(".detach sizes")
    assert "error[unknown-table]" in session("select size from sizes;")
    assert "error[invalid-argument]" in session(".attach x")


def test_commands_take_up_the_last_statement_of_the_user(shell):
    shell("select country from sales where country = 'DE';\n.tables\n.files")
    assert "country = 'DE'" in shell(".explain")
    assert "country = 'DE'" in shell(".advise") or "error" not in shell(".advise")
    rows = shell.shell.connection.sql("SHOW FILES FROM sales.seed").rows()
    assert "error" not in shell(f".why {rows[0][2]}")
    assert "FR" in shell(".coverage sales country")
