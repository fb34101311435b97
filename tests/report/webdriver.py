"""As much of WebDriver as the page's test needs, by the standard library alone."""

import base64
import json
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--allow-pre-commit-input",
]


class Browser:
    """A headless Chromium with a profile of its own in `folder`."""

    def __init__(self, chromedriver, chromium, folder):
        # Port 0: chromedriver chooses a free one and says which.
        self.driver = subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        self.session = None
        port = None
        for line in self.driver.stdout:
            if "successfully on port" in line:
                port = int(line.rstrip().rstrip(".").split()[-1])
                break
        if port is None:
            self.close()
            raise RuntimeError("chromedriver did not start")
        self.base = f"http://127.0.0.1:{port}"
        options = {"binary": chromium, "args": CHROMIUM_FLAGS + [f"--user-data-dir={folder}"]}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options,
                        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        try:
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        except BaseException:
            self.close()
            raise
        self.session = answer["sessionId"]

    def call(self, method, path, body=None):
        url = self.base + (f"/session/{self.session}" if self.session else "") + path
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(url, data=data, method=method,
                                         headers={"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:2000]) from error

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click")

    def keys(self, selector, text):
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def hover(self, selector):
        self.call("POST", "/actions", {"actions": [{
            "type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
            "actions": [{"type": "pointerMove", "duration": 0, "x": 0, "y": 0,
                         "origin": {ELEMENT: self.find(selector)}}]}]})

    def size(self, width, height):
        self.call("POST", "/window/rect", {"width": width, "height": height})

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", "/screenshot")))

    def pdf(self):
        return base64.b64decode(self.call("POST", "/print", {"background": True}))

    def wait(self, script, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            if self.run("return " + script):
                return
            time.sleep(0.05)
        raise AssertionError(f"not true within {seconds} s: {script}")

    def close(self):
        try:
            if self.session:
                self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()
