"""A browser of this machine, and the pages in build/html behind a server of this process."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

HTML = Path(__file__).resolve().parents[2] / "build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Silent(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/favicon.ico":  # a browser asks for it by itself
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    assert (HTML / "index.html").is_file(), "there is no build/html; run make book"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(HTML)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser")
    own = os.environ.get("COMPANION_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with driver.sync_playwright() as session:
        if own is None and not Path(session.chromium.executable_path).exists():
            pytest.skip(f"no browser: install one of {', '.join(NAMES)}, or name one in COMPANION_CHROMIUM")
        launched = session.chromium.launch(executable_path=own, args=["--no-sandbox"])
        yield launched
        launched.close()
