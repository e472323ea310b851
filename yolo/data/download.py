"""Fetching the published sets, only when asked: resumed, checked, and unpacked without leaving the folder."""

import hashlib
import http.client
import logging
import shutil
import stat
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from yolo.data.formats.annotated import Annotated

log = logging.getLogger(__name__)

_CHUNK = 1 << 20


class Archive(NamedTuple):
    """One file to fetch and unpack."""

    url: str
    size: int  # bytes
    md5: str  # as the authors or torchvision publish it; empty where nobody does: then the size must do
    makes: str  # what is there once it is unpacked, below the root
    strip: int = 0  # leading folders of its members to drop
    into: str = ""  # folder below the root


_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"
_COCO = "http://images.cocodataset.org"
ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "voc": (
        Archive(
            f"{_VOC}/voc2007/VOCtrainval_06-Nov-2007.tar",
            460032000,
            "c52e279531787c972589f7e41ab4ae64",
            "VOC2007/ImageSets/Main/trainval.txt",
            strip=1,
        ),
        Archive(
            f"{_VOC}/voc2007/VOCtest_06-Nov-2007.tar",
            451020800,
            "b6e924de25625d8de591ea690078ad9f",
            "VOC2007/ImageSets/Main/test.txt",
            strip=1,
        ),
        Archive(
            f"{_VOC}/voc2012/VOCtrainval_11-May-2012.tar",
            1999639040,
            "6cd6e144f989b92b3379bac3b3de84fd",
            "VOC2012/ImageSets/Main/trainval.txt",
            strip=1,
        ),
    ),
    "coco": (
        Archive(
            f"{_COCO}/annotations/annotations_trainval2017.zip",
            252907541,
            "f4bbac642086de4f52a3fdda2de5fa2c",
            "annotations/instances_val2017.json",
        ),
        Archive(f"{_COCO}/zips/val2017.zip", 815585330, "442b8da7639aecaf257c1dceb8ba8c80", "val2017"),
        Archive(f"{_COCO}/zips/train2017.zip", 19336861798, "cced6f7f71b7629ddf16f17bbcfab6b2", "train2017"),
    ),
}


def read_published(
    name: str, root: str | Path, reader: Callable[[], Annotated], download: bool = False
) -> Annotated:
    """Read a published set, fetching what is missing first if that is wanted.

    Args:
        name: A key of ``ARCHIVES``.
        root: The folder of the set.
        reader: Reads it.
        download: Whether to fetch what is missing.

    Raises:
        ValueError: Something is missing and ``download`` is false, or what came is not what was published.
    """
    archives = ARCHIVES.get(name)
    if archives is None:
        raise ValueError(f"{name!r} is no published set, known are {sorted(ARCHIVES)}")
    if download:
        fetch(archives, root)
    elif not Path(root).is_dir():
        total = sum(archive.size for archive in archives) / 1e9
        raise ValueError(
            f"{root}: no such folder; set data.root, or data.download=true to fetch {total:.1f} GB"
        )
    return reader()


def fetch(archives: Sequence[Archive], root: str | Path) -> None:
    """Fetch and unpack what is not there yet."""
    base = Path(root)
    base.mkdir(parents=True, exist_ok=True)
    for archive in archives:
        kept = base / PurePosixPath(archive.url).name  # removed only when all of it is unpacked
        if (base / archive.makes).exists() and not kept.exists():
            continue
        path = download_file(archive, base)
        log.info("unpacking %s into %s", path.name, base)
        unpack(path, base / archive.into, strip=archive.strip)
        path.unlink()


def download_file(archive: Archive, folder: Path, attempts: int = 5) -> Path:
    """Fetch one file, going on where an earlier attempt stopped.

    Raises:
        ValueError: The address does not answer, or the file has another size or checksum than published.
    """
    target = folder / PurePosixPath(archive.url).name
    part = target.with_name(target.name + ".part")
    if not target.is_file():
        for attempt in range(attempts):
            try:
                _continue(archive.url, part, archive.size)
            except (OSError, http.client.HTTPException) as error:
                if attempt == attempts - 1:
                    raise ValueError(f"{archive.url}: cannot be fetched: {error}") from error
                log.warning("%s: %s, trying again", archive.url, error)
            if part.is_file() and part.stat().st_size >= archive.size:
                break
        _check(part, archive)
        part.replace(target)
    else:
        _check(target, archive)
    return target


def _continue(url: str, part: Path, size: int) -> None:
    """Append to ``part`` what is missing of it."""
    have = part.stat().st_size if part.is_file() else 0
    if have >= size:
        return
    if shutil.disk_usage(part.parent).free < size - have:
        raise ValueError(f"{part.parent}: no room for {(size - have) / 1e9:.2f} GB more of {url}")
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        resumed = have > 0 and answer.status == http.client.PARTIAL_CONTENT
        done = have if resumed else 0
        log.info(
            "fetching %s (%.1f MB)%s", url, size / 1e6, f" from {done / 1e6:.1f} MB on" if resumed else ""
        )
        with part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if done > size:
                    raise ValueError(f"{url}: more than the {size} bytes that it should have")


def _check(path: Path, archive: Archive) -> None:
    size = path.stat().st_size if path.is_file() else 0
    if size != archive.size:
        raise ValueError(
            f"{archive.url}: {size} bytes came, wanted {archive.size}; start again to go on from there"
        )
    if archive.md5:
        digest = hashlib.md5(usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != archive.md5:
            path.unlink()
            raise ValueError(
                f"{archive.url}: MD5 is {digest.hexdigest()}, wanted {archive.md5}; the file is removed"
            )


def unpack(path: Path, folder: Path, strip: int = 0) -> None:
    """Unpack a zip or tar archive of plain files and folders.

    Every name is checked before the first file is written.

    Args:
        path: The archive.
        folder: Where its members go.
        strip: Leading folders of the names to drop.

    Raises:
        ValueError: A member leads out of the folder, or is a link or a device; or the archive is damaged.
    """
    try:
        if zipfile.is_zipfile(path):
            _unpack_zip(path, folder, strip)
        else:
            _unpack_tar(path, folder, strip)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path}: not a whole zip or tar archive: {error}") from error


def _target(path: Path, name: str, folder: Path, strip: int) -> Path | None:
    """Where a member goes; None for one that vanishes with the leading folders."""
    pure = PurePosixPath(name.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or ":" in (pure.parts or ("",))[0] or "\x00" in name:
        raise ValueError(f"{path}: member {name!r} leads out of the folder, refused")
    parts = pure.parts[strip:]
    return folder.joinpath(*parts) if parts else None


def _unpack_zip(path: Path, folder: Path, strip: int) -> None:
    with zipfile.ZipFile(path) as archive:
        plan = []
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(
                    f"{path}: member {member.filename!r} is a link or a device, nothing was unpacked"
                )
            target = _target(path, member.filename, folder, strip)
            if target is not None and not member.is_dir():
                plan.append((member, target))
        for member, target in plan:
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)


def _unpack_tar(path: Path, folder: Path, strip: int) -> None:
    with tarfile.open(path) as archive:
        plan = []
        for member in archive:
            if not (member.isreg() or member.isdir()):
                raise ValueError(
                    f"{path}: member {member.name!r} is a link or a device, nothing was unpacked"
                )
            target = _target(path, member.name, folder, strip)
            if target is not None and member.isreg():
                plan.append((member, target))
        for member, target in plan:
            target.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)
