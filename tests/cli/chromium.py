# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium through its DevTools protocol, for tests/cli/page. It needs only
Python: it contains a small WebSocket client. It must never ignore an error of the page."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

LIMIT_S = 60
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--use-gl=angle",
         "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-first-run",
         "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage",
         "--remote-debugging-port=0", "--remote-allow-origins=*", "--hide-scrollbars")


def program():
    return shutil.which("chromium") or shutil.which("chromium-browser") or \
        shutil.which("google-chrome")


class Socket:
    """A WebSocket connection to one page of the browser."""

    def __init__(self, url):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.sock = socket.create_connection((name, int(port)), timeout=LIMIT_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
                          f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                          "Sec-WebSocket-Version: 13\r\n\r\n".encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.sock.recv(65536)
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        if b" 101 " not in head:
            raise RuntimeError(head.decode())

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        head = struct.pack("!BB", 0x81, 0x80 | (len(data) if len(data) < 126 else
                                                126 if len(data) < 65536 else 127))
        if len(data) >= 126:
            head += struct.pack("!H" if len(data) < 65536 else "!Q", len(data))
        self.sock.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def take(self, count):
        while len(self.buffer) < count:
            more = self.sock.recv(1 << 20)
            if not more:
                raise RuntimeError("Chromium has closed the connection")
            self.buffer += more
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def receive(self):
        text = b""
        while True:
            first, second = self.take(2)
            length = second & 0x7f
            if length == 126:
                length, = struct.unpack("!H", self.take(2))
            elif length == 127:
                length, = struct.unpack("!Q", self.take(8))
            data = self.take(length)
            if first & 0xf in (0, 1):
                text += data
            if first & 0x80 and first & 0xf in (0, 1):
                return text.decode()


class Page:
    """A tab of the browser. `errors` has the page's messages of level error, its exceptions and
    its failed requests; `requests` has the addresses that the page requested."""

    def __init__(self, url):
        self.socket, self.last = Socket(url), 0
        self.errors, self.requests = [], []
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")

    def note(self, message):
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.errors.append(json.dumps(told["args"])[:600])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def call(self, method, **params):
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") != self.last:
                self.note(message)
                continue
            if "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            return message["result"]

    def run(self, script):
        """Runs JavaScript and returns its value."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                         awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script[:200]}: {json.dumps(done['exceptionDetails'])[:600]}")
        return done["result"].get("value")

    def wait(self, script):
        """Waits until the JavaScript expression is true."""
        end = time.monotonic() + LIMIT_S
        while not self.run(script):
            if time.monotonic() > end:
                raise RuntimeError(f"this does not become true: {script}")
            time.sleep(0.05)

    def open(self, url):
        self.call("Page.navigate", url=url)
        # The page sets `drawn` when a view is complete.
        self.wait("document.readyState === 'complete' && document.body && "
                  "document.body.dataset.drawn === location.hash")

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def key(self, name, code=0, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, text=text if kind ==
                      "keyDown" else "", windowsVirtualKeyCode=code)

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        with open(path, "wb") as f:
            f.write(base64.b64decode(data["data"]))


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="penstock-chromium.")
        self.process = subprocess.Popen([program(), *FLAGS, f"--user-data-dir={self.folder}",
                                         "about:blank"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = os.path.join(self.folder, "DevToolsActivePort")
        end = time.monotonic() + LIMIT_S
        while not (os.path.exists(port_file) and os.path.getsize(port_file)):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("Chromium does not start")
            time.sleep(0.05)
        with open(port_file, encoding="utf-8") as f:
            self.port = int(f.readline())

    def page(self):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/json/new?about:blank",
                                         method="PUT")
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return Page(json.load(answer)["webSocketDebuggerUrl"])

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
