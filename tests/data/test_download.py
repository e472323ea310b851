"""Fetching from a server of our own: resumed, checked, unpacked safely."""

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from tests.helpers.paths import shared
from yolo.data import read_published
from yolo.data.download import ARCHIVES, Archive, download_file, fetch, unpack
from yolo.data.formats import Annotated


class Server(BaseHTTPRequestHandler):
    """Serves ``files``; stops after ``limit`` bytes once; understands ranges unless told not to."""

    files: ClassVar[dict[str, bytes]] = {}
    ranges: ClassVar[list[str | None]] = []
    cut: ClassVar[list[int]] = []  # how much of the coming answers to send
    plain: ClassVar[bool] = False

    def do_GET(self) -> None:
        data = self.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not self.plain else 0
        body = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.cut.pop(0)] if self.cut else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.files, Server.ranges, Server.cut, Server.plain = {}, [], [], False
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def served(url: str, data: bytes, makes: str = "set/a.txt", **changes: object) -> Archive:
    Server.files["/set.zip"] = data
    archive = Archive(f"{url}/set.zip", len(data), hashlib.md5(data).hexdigest(), makes)
    return archive._replace(**changes)  # type: ignore[arg-type]


def test_fetch_and_unpack(server: str, tmp_path: Path) -> None:
    """Once: a second call finds everything and asks for nothing; the archive is gone."""
    archive = served(server, zipped({"VOCdevkit/set/a.txt": b"hello", "VOCdevkit/": b""}), strip=1)
    fetch([archive], tmp_path / "root")
    fetch([archive], tmp_path / "root")
    assert (tmp_path / "root" / "set" / "a.txt").read_text() == "hello"
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["set"]
    assert Server.ranges == [None]


@pytest.mark.parametrize("plain", [False, True])
def test_goes_on_after_a_cut(server: str, tmp_path: Path, plain: bool) -> None:
    """Two cut answers; the rest is asked for, and a server without ranges starts over."""
    data = zipped({"set/a.txt": b"x" * 1000})
    archive = served(server, data)
    Server.cut, Server.plain = [300, 300], plain
    assert download_file(archive, tmp_path).read_bytes() == data
    assert Server.ranges == [None, "bytes=300-", "bytes=300-" if plain else "bytes=600-"]


def test_wrong_content_is_refused(server: str, tmp_path: Path) -> None:
    data = zipped({"set/a.txt": b"x"})
    with pytest.raises(ValueError, match=f"{len(data)} bytes came, wanted {len(data) + 1}"):
        download_file(served(server, data, size=len(data) + 1), tmp_path / "", attempts=2)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=f"more than the {len(data) - 1} bytes"):
        download_file(served(server, data, size=len(data) - 1), tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"MD5 .* wanted 00"):
        download_file(served(server, data, md5="00"), tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"none\.zip: cannot be fetched: HTTP Error 404"):
        download_file(Archive(f"{server}/none.zip", 5, "", "x"), tmp_path, attempts=1)


def test_interrupted_unpacking_is_done_again(server: str, tmp_path: Path) -> None:
    """The archive is removed last, so a folder that is half there does not count."""
    archive = served(server, zipped({"set/a.txt": b"1", "set/b.txt": b"2"}), makes="set")
    download_file(archive, tmp_path)
    (tmp_path / "set").mkdir()
    fetch([archive], tmp_path)
    assert (tmp_path / "set" / "b.txt").read_text() == "2"


@pytest.mark.parametrize(
    "name",
    ["../out.txt", "a/../../out.txt", "/out.txt", "..\\out.txt", "C:\\out.txt", "a/b/../../../out.txt"],
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_that_lead_outside(tmp_path: Path, name: str, kind: str) -> None:
    """Refused by name before anything is written."""
    path, root = tmp_path / f"set.{kind}", tmp_path / "in" / "root"
    if kind == "zip":
        path.write_bytes(zipped({"good.txt": b"1", name: b"2"}))
    else:
        with tarfile.open(path, "w") as archive:
            for member in ("good.txt", name):
                info = tarfile.TarInfo(member)
                info.size = 1
                archive.addfile(info, io.BytesIO(b"1"))
    with pytest.raises(ValueError, match="leads out of the folder, refused"):
        unpack(path, root)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc"
        archive.addfile(info)
    with pytest.raises(ValueError, match="member 'link' is a link or a device"):
        unpack(tmp_path / "a.tar", tmp_path / "out")
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive_zip:
        archive_zip.writestr(link, "/etc")
    with pytest.raises(ValueError, match="member 'link' is a link or a device"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(ValueError, match=r"a\.tar: not a whole zip or tar archive"):
        unpack(tmp_path / "a.tar", tmp_path / "out")


def test_archives_of_the_reported_case(tmp_path: Path) -> None:
    folder = shared("cases", "inputs", "S07")
    for name in ("set.zip", "set.tar"):
        with pytest.raises(ValueError, match=r"leads out of the folder|link"):
            unpack(folder / name, tmp_path / "out")
    assert list(tmp_path.rglob("*")) == []


def test_only_when_asked(tmp_path: Path) -> None:
    """Without download=true nothing is fetched, and the message says how."""
    with pytest.raises(
        ValueError, match=r"no such folder; set data.root, or data.download=true to fetch 2.9 GB"
    ):
        read_published("voc", tmp_path / "none", lambda: Annotated([], []))
    with pytest.raises(ValueError, match=r"'cifar' is no published set, known are \['coco', 'voc'\]"):
        read_published("cifar", tmp_path, lambda: Annotated([], []))
    assert read_published("voc", tmp_path, lambda: Annotated([], ["a"])).classes == ["a"]
    for archives in ARCHIVES.values():
        for archive in archives:
            assert len(archive.md5) == 32
