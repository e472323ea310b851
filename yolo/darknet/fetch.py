"""One file from the network, only when asked: resumed, measured, verified, and never half there."""

import hashlib
import http.client
import logging
import shutil
import urllib.error
import urllib.request
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger(__name__)

CHUNK = 1 << 20  # bytes
TIMEOUT = 60  # seconds without a byte


def fetch(url: str, target: Path, sizes: Collection[int], sha256: str = "", attempts: int = 5) -> Path:
    """Fetch ``url`` to ``target``, going on where an earlier attempt stopped.

    Args:
        url: http or https.
        target: The file; what is unfinished lies beside it as ``.part``.
        sizes: Bytes that it may have.
        sha256: Of the whole file, hexadecimal; empty where nobody has published it.
        attempts: How often a connection may break.

    Raises:
        ValueError: The address does not answer, or gave another file than expected, which is removed.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: only http and https addresses are fetched")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    for attempt in range(attempts):
        try:
            _go_on(url, part, max(sizes))
            break
        except (OSError, http.client.HTTPException) as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if final or attempt == attempts - 1:
                raise ValueError(f"{url}: cannot be fetched ({error})") from error
            log.warning("%s: %s, going on", url, error)
    check(part, url, sizes, sha256)
    part.replace(target)
    return target


def _go_on(url: str, part: Path, most: int) -> None:
    """Append to ``part`` what is missing of it; raise OSError when the connection ends too early."""
    have = part.stat().st_size if part.is_file() else 0
    if shutil.disk_usage(part.parent).free < most - have:
        raise ValueError(f"{part.parent}: no room for {(most - have) / 1e6:.0f} MB more")
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # there is no more than what is here; the check says whether that is all
        raise
    with answer:
        resumed = bool(have) and answer.status == http.client.PARTIAL_CONTENT
        done = have if resumed else 0
        length = answer.headers.get("Content-Length")
        whole = done + int(length) if length is not None else None
        if whole is not None and whole > most:
            raise ValueError(f"{url}: offers {whole} bytes, {most} at most were expected")
        log.info("fetching %s%s", url, f" from byte {done} on" if resumed else "")
        with part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                if done > most:
                    break
    if done > most:
        part.unlink()
        raise ValueError(f"{url}: gave more than the {most} bytes that were expected")
    if whole is not None and done < whole:
        raise ConnectionError(f"the connection ended after {done} of {whole} bytes")


def check(path: Path, url: str, sizes: Collection[int], sha256: str) -> None:
    """Compare size and checksum with what is known of ``url``; remove the file if they differ.

    Raises:
        ValueError: They differ.
    """
    size = path.stat().st_size
    if size not in sizes:
        path.unlink()
        wanted = " or ".join(str(one) for one in sorted(sizes))
        raise ValueError(f"{url}: {size} bytes came, {wanted} were expected; the file is removed")
    if not sha256:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        path.unlink()
        raise ValueError(f"{url}: the checksum is {found}, {sha256} was expected; the file is removed")
