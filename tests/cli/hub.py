"""A stand-in for the Hugging Face hub: the paths that its client library asks for, over folders of this machine."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub:
    """`repositories`: {"owner/name": {file: bytes}}. `breaks_after`: bytes after which the next download of a file is cut off."""

    def __init__(self, repositories):
        self.repositories = repositories
        self.revision = "a" * 40
        self.revisions = {self.revision}
        self.gated = set()
        self.requests = []  # (method, path, range)
        self.tokens = set()
        self.breaks_after = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                hub.answer(self)

            def do_GET(self):
                hub.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def downloads(self):
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]

    def answer(self, request):
        self.requests.append((request.command, request.path, request.headers.get("Range")))
        if token := request.headers.get("Authorization"):
            self.tokens.add(token)
        path = request.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            return self.describe(request, *match.groups())
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.give(request, *match.groups())
        self.refuse(request, 404, "EntryNotFound")

    def refuse(self, request, status, code):
        self.send(request, status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def send(self, request, status, body, headers):
        request.send_response(status)
        for key, value in {"Content-Length": len(body), **headers}.items():
            request.send_header(key, str(value))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    def known(self, request, repository, revision):
        if repository not in self.repositories:
            self.refuse(request, 404, "RepoNotFound")
        elif repository in self.gated:
            self.refuse(request, 403, "GatedRepo")
        elif revision not in {None, "main", *self.revisions}:
            self.refuse(request, 404, "RevisionNotFound")
        else:
            return self.repositories[repository]
        return None

    def describe(self, request, repository, what, revision):
        files = self.known(request, repository, revision)
        if files is None:
            return
        if what == "tree":
            body = [{"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in files.items()]
        else:
            body = {"id": repository, "modelId": repository, "sha": self.revision, "private": False,
                    "siblings": [{"rfilename": name} for name in files]}
        self.send(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def give(self, request, repository, revision, name):
        files = self.known(request, repository, revision)
        if files is None:
            return
        if name not in files:
            return self.refuse(request, 404, "EntryNotFound")
        content, start = files[name], 0
        if match := re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", "")):
            start = int(match[1])
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": self.revision, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if request.command == "GET" and (limit := self.breaks_after.pop(name, None)) is not None:
            headers["Content-Length"] = len(content) - start
            request.send_response(206 if start else 200)
            for key, value in headers.items():
                request.send_header(key, str(value))
            request.end_headers()
            request.wfile.write(content[start:start + limit])
            request.wfile.flush()
            request.connection.close()
            request.close_connection = True
            return
        self.send(request, 206 if start else 200, content[start:], headers)
