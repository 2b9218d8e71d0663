"""Uploads to a hub: a local server gives the hub's responses."""

import base64
import http.server
import json
import threading

import huggingface_hub.constants
import pytest

import bert_jax
from bert_jax.errors import UserError


class _Hub(http.server.BaseHTTPRequestHandler):
    """The four requests of an upload. The last request contains the files."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((self.path, self.headers.get("Authorization")))
        answer, code = {}, 200
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            answer = {"url": f"{self.server.url}/org/tiny"}
            if "secret" not in self.headers.get("Authorization", ""):
                code, answer = 401, {"error": "Invalid username or password."}
        elif self.path == "/api/models/org/tiny/preupload/main":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            answer = {"files": files}
        elif self.path == "/api/models/org/tiny/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[line["value"]["path"]] = content
            address = f"{self.server.url}/org/tiny/commit/{'a' * 40}"
            answer = {"commitUrl": address, "commitOid": "a" * 40}
        content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Prints nothing."""


@pytest.fixture
def hub(monkeypatch):
    """A running local server in place of the hub."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.requests, server.files = [], {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_push_uploads_the_files_that_save_writes(hub, checkpoint_dir, tmp_path):
    model = bert_jax.load(checkpoint_dir)
    address = model.push_to_hub("org/tiny", private=True, token="secret")
    assert address == f"{hub.url}/org/tiny"
    about = {"name": "tiny", "organization": "org", "visibility": "private"}
    assert hub.created == about
    assert {token for _, token in hub.requests} == {"Bearer secret"}
    model.save(tmp_path / "saved")
    saved = {p.name: p.read_bytes() for p in (tmp_path / "saved").iterdir()}
    assert hub.files == saved and "model.safetensors" in saved


def test_a_refused_upload_is_a_one_line_error(hub, checkpoint_dir):
    model = bert_jax.load(checkpoint_dir)
    with pytest.raises(UserError, match=r"refused org/tiny \(.*401.*hf auth login"):
        model.push_to_hub("org/tiny", token="wrong")
    assert hub.files == {}
