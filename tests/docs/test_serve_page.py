"""The page on the server, followed as a newcomer does: the sample cube, a server, curl, ADBC, then TLS and a token."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import fences
import pytest

PAGE = fences.CHECKOUT / "docs" / "serve.md"
pytestmark = pytest.mark.process
#: Behind the start of a server: wait for it, and know its ports, which are free ones here.
STARTED = """ > served 2> failed & SERVER=$!
trap 'kill $SERVER' EXIT
until grep -q ready served; do kill -0 $SERVER; sleep 0.05; done
HTTP=$(sed -n 's/^http .*://p' served); FLIGHT=$(sed -n 's/^flight .*://p' served)
"""


def commands(block: str) -> str:
    """Return the commands of a block as a script, by whose ports and host any machine may run them."""
    lines = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    script = ""
    for line in lines:
        if line.startswith("kartosql serve"):
            served = line.removesuffix(" &").replace("--port 31337 --http-port 8080", "--port 0 --http-port 0")
            script += f": > served\n{served}{STARTED}"  # not the one of a server before
        else:
            script += re.sub(r"^curl ", "curl -sS --noproxy '*' ", line).replace(":8080/", ":$HTTP/") + "\n"
    return script.replace("$(hostname)", "localhost")


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="curl and openssl are asked")
def test_the_page_is_followed(tmp_path: Path) -> None:
    pytest.importorskip("adbc_driver_flightsql")
    first, asked, team, adbc, *_ = fences.blocks(PAGE, "text")
    (tmp_path / "adbc.py").write_text(f"import sys\n{adbc}".replace('"grpc://127.0.0.1:31337"', "sys.argv[1]"))
    shown = re.search(r"^\{.*?(?= \.\.\.$)", asked, re.MULTILINE)
    assert shown
    (tmp_path / "shown").write_text(shown[0])
    (tmp_path / "home").mkdir()
    begin = f"export HOME={tmp_path}/home\n"
    script = commands(first) + commands(asked).replace("\n", " | tee answer\n") + 'grep -qF "$(cat shown)" answer\n'
    fences.run_shell(f"{begin}{script}{sys.executable} adbc.py grpc://127.0.0.1:$FLIGHT", tmp_path)
    script = commands(team).rstrip("\n") + ' | tee answer\ngrep -qF "[[27004]]" answer\n'
    fences.run_shell(begin + script, tmp_path)
