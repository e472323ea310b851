"""Published weights by name, against a server on this machine."""

import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from yolo import models
from yolo.darknet import Header, native_slots, save_weights, slots_of
from yolo.darknet.fetch import fetch
from yolo.darknet.zoo import ZOO, Published, cache_folder, load_published, locate, published

CONTENT = bytes(range(256)) * 40


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ``files``: the next ``breaks`` answers end halfway, ranges are honoured if ``ranged``."""

    files: dict[str, bytes]
    breaks = 0
    ranged = True
    seen: list[str | None]

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.seen.append(asked)
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(re.findall(r"\d+", asked)[0]) if asked and self.ranged else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        part = content[start:]
        if type(self).breaks > 0:
            type(self).breaks -= 1
            self.close_connection = True
            part = part[: len(part) // 2]
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Fresh", (Handler,), {"files": {"/a.weights": CONTENT}, "seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", handler
        running.shutdown()
        thread.join()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_arrives_whole(server, tmp_path: Path) -> None:
    url, _ = server
    path = fetch(f"{url}/a.weights", tmp_path / "new" / "a.weights", [len(CONTENT)], digest(CONTENT))
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["a.weights"]


@pytest.mark.parametrize("ranged", [True, False])
def test_a_broken_connection_goes_on_where_it_stopped(server, tmp_path: Path, ranged: bool) -> None:
    url, handler = server
    handler.breaks, handler.ranged = 2, ranged
    path = fetch(f"{url}/a.weights", tmp_path / "a", [len(CONTENT)], digest(CONTENT))
    assert path.read_bytes() == CONTENT
    assert handler.seen == [None, "bytes=5120-", f"bytes={7680 if ranged else 5120}-"]


def test_a_second_run_goes_on_where_the_first_gave_up(server, tmp_path: Path) -> None:
    url, handler = server
    handler.breaks = 1
    with pytest.raises(ValueError, match="cannot be fetched"):
        fetch(f"{url}/a.weights", tmp_path / "a", [len(CONTENT)], attempts=1)
    assert not (tmp_path / "a").exists()
    fetch(f"{url}/a.weights", tmp_path / "a", [len(CONTENT)], attempts=1)
    assert handler.seen == [None, "bytes=5120-"]
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("sizes", "sha256", "said"),
    [
        ([len(CONTENT) - 1], "", "offers 10240 bytes, 10239 at most were expected"),
        ([len(CONTENT) + 4], "", "10240 bytes came, 10244 were expected; the file is removed"),
        ([len(CONTENT)], "0" * 64, "the checksum is [0-9a-f]{64}, 0{64} was expected; the file is removed"),
    ],
)
def test_another_file_than_published_is_never_kept(server, tmp_path: Path, sizes, sha256, said: str) -> None:
    url, _ = server
    with pytest.raises(ValueError, match=said):
        fetch(f"{url}/a.weights", tmp_path / "a", sizes, sha256)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_page_is_not_asked_for_again(server, tmp_path: Path) -> None:
    url, handler = server
    with pytest.raises(ValueError, match=r"cannot be fetched .*404"):
        fetch(f"{url}/b.weights", tmp_path / "b", [10])
    assert len(handler.seen) == 1


def test_only_the_network_is_fetched_from(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only http and https"):
        fetch("file:///etc/hostname", tmp_path / "a", [10])


def tiny_entry(url: str, handler: type[Handler]) -> tuple[Published, torch.nn.Module]:
    torch.manual_seed(3)
    network = models.yolov3_tiny(num_classes=2, width=0.125)
    floats = sum(slot.floats for slot in slots_of(network))
    arguments = {"num_classes": 2, "width": 0.125}
    entry = Published(f"{url}/n.weights", floats, models.yolov3_tiny, (64, 64), arguments, ("a", "b"))
    return entry, network


def test_nothing_is_fetched_before_it_is_asked_for(server, tmp_path: Path, monkeypatch) -> None:
    url, handler = server
    entry, network = tiny_entry(url, handler)
    monkeypatch.setitem(ZOO, "tiny", entry)
    with pytest.raises(ValueError, match=r"n.weights: not there; download=true fetches it from http://127"):
        load_published("tiny", folder=tmp_path)
    assert handler.seen == []
    source = tmp_path / "source.weights"
    save_weights(native_slots(network), source, Header(0, 1, 0, 7))
    handler.files["/n.weights"] = source.read_bytes()
    for _ in range(2):  # the second time from the cache
        loaded, classes = load_published("tiny", download=True, folder=tmp_path / "cache")
        assert classes == ["a", "b"]
        for key, value in network.state_dict().items():
            assert torch.equal(loaded.state_dict()[key], value), key
    assert len(handler.seen) == 1


def test_a_damaged_copy_in_the_cache_is_removed(server, tmp_path: Path) -> None:
    url, handler = server
    entry, _ = tiny_entry(url, handler)
    (tmp_path / "n.weights").write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes came"):
        locate(entry, tmp_path)
    assert not (tmp_path / "n.weights").exists()


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOLO_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "weights"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no published weights are called 'yolov9'; known are yolov1, "):
        published("yolov9")


@pytest.mark.parametrize("name", ZOO)
def test_the_table_fits_its_networks(name: str) -> None:
    entry = ZOO[name]
    with torch.device("meta"):
        network = entry.build(**entry.arguments)
    slots = [slot for slot in slots_of(network) if entry.cutoff is None or slot.layer < entry.cutoff]
    assert sum(slot.floats for slot in slots) == entry.floats
    assert entry.url.startswith("https://")
    assert len(entry.sha256) in (0, 64)
    assert len(entry.classes) in (0, network.num_classes)


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    assert ZOO["yolov3-tiny"].sizes[1] == 35_434_956
    assert ZOO["yolov4"].sizes[1] == 257_717_640
    assert replace(ZOO["yolov2"], floats=1).sizes == (20, 24)
