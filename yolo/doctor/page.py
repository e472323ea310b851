"""A diagnosis as one HTML file that needs nothing else: no scripts, no fonts, no other files."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path

from yolo.doctor.examine import Diagnosis
from yolo.doctor.findings import Finding, Level, by_kind, kind_of
from yolo.doctor.text import spread, verdict
from yolo.doctor.thumbnail import thumbnails

PICTURED = 24  # findings of one kind that are shown with pictures
WRITTEN = 200  # and in words; the JSON file has all
WORDS: dict[Level, str] = {"lost": "data is lost", "warning": "look at this", "note": "good to know"}
STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #66727f; --line: #d9dee4; --back: #fff; --plate: #f4f6f8;
  --lost: #b42335; --warning: #9a6200; --note: #466078; --bar: #2b7a9b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ee; --soft: #98a4b1; --line: #37414c; --back: #14191f;
  --plate: #1d242c; --lost: #ff7d8a; --warning: #e5b045; --note: #9bb8d3; --bar: #4aa3c7; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 1080px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 0; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.verdict { padding: .6rem .9rem; border-left: 4px solid; background: var(--plate); margin: 1rem 0; }
.lost { color: var(--lost); } .warning { color: var(--warning); } .note { color: var(--note); }
.fine { color: #2b8a57; }
table { border-collapse: collapse; margin: 1rem 0; } caption { text-align: left; font-weight: 600; }
th, td { padding: .15rem .7rem .15rem 0; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
.bar { display: inline-block; height: .7em; background: var(--bar); vertical-align: middle; min-width: 1px; }
td.bars { width: 220px; text-align: left; }
section { border-top: 1px solid var(--line); padding: 1rem 0; }
section h2 small { font-weight: 500; font-size: .75rem; padding: 0 .5em; border: 1px solid; border-radius: 3px;
  vertical-align: 2px; margin-right: .5em; }
.grid { display: flex; flex-wrap: wrap; gap: .8rem; margin-top: .6rem; }
figure { margin: 0; background: var(--plate); padding: .4rem; max-width: 248px; }
figure.pair { max-width: 496px; } figure img { max-width: 240px; display: inline-block; vertical-align: top; }
figure.pair img + img { margin-left: 4px; }
figcaption { font-size: .78rem; line-height: 1.35; overflow-wrap: anywhere; margin-top: .3rem; }
ul { margin: .5rem 0; padding-left: 1.2rem; font-size: .85rem; overflow-wrap: anywhere; }
nav a { color: inherit; } nav { margin: 1rem 0; } nav div { margin: .1rem 0; }
"""


def write_page(diagnosis: Diagnosis, path: Path, threads: int | None = None) -> None:
    """Write the page.

    Args:
        diagnosis: What was found.
        path: Of the file.
        threads: Thumbnails that are made at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(threads) as pool:
        path.write_text("\n".join(_page(diagnosis, pool)), "utf-8")


def _page(diagnosis: Diagnosis, pool: ThreadPoolExecutor) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(diagnosis.name)}: data check</title><style>{STYLE}</style></head><body>"
    yield f"<h1>{escape(diagnosis.name)}</h1>"
    yield f'<p class="soft">{escape(diagnosis.base)}</p>'
    colour = "lost" if diagnosis.lost else "fine"
    yield f'<p class="verdict {colour}">{escape(verdict(diagnosis))}</p>'
    groups = by_kind(diagnosis.findings)
    yield "<nav>"
    for (level, code), findings in groups.items():
        link = f'<a href="#{level}-{escape(code)}">{escape(kind_of(code).title)}</a>'
        yield f'<div class="{level}">{len(findings)} &times; {link}</div>'
    yield "</nav>"
    yield from _tables(diagnosis)
    for (level, code), findings in groups.items():
        yield from _section(diagnosis, level, code, findings, pool)
    yield "</body></html>\n"


def _tables(diagnosis: Diagnosis) -> Iterator[str]:
    yield "<table><caption>Splits</caption><tr><th>split<th>pictures<th>boxes<th>without objects"
    yield "<th>difficult<th>crowds</tr>"
    for name, tally in diagnosis.splits.items():
        cells = (tally.pictures, tally.boxes, tally.empty, tally.difficult, tally.crowds)
        yield f"<tr><td>{escape(name)}" + "".join(f"<td>{cell:,}" for cell in cells) + "</tr>"
    yield "</table>"
    yield "<table><caption>Boxes by class</caption><tr><th>class"
    yield "".join(f"<th>{escape(split)}" for split in diagnosis.splits) + "<th>all<th></tr>"
    most = max((used.total for used in diagnosis.usage.values()), default=0) or 1
    for name, used in diagnosis.usage.items():
        numbers = "".join(f"<td>{used.boxes.get(split, 0):,}" for split in diagnosis.splits)
        bar = f'<span class="bar" style="width:{200 * used.total / most:.1f}px"></span>' if used.total else ""
        yield f'<tr><td>{escape(name)}{numbers}<td>{used.total:,}<td class="bars">{bar}</tr>'
    yield "</table>"


def _section(
    diagnosis: Diagnosis, level: Level, code: str, findings: Sequence[Finding], pool: ThreadPoolExecutor
) -> Iterator[str]:
    kind = kind_of(code)
    yield f'<section id="{level}-{escape(code)}"><h2 class="{level}"><small>{WORDS[level]}</small>'
    yield f"{len(findings)} &times; {escape(kind.title)}</h2>"
    words = ". ".join(part[0].upper() + part[1:] for part in (kind.advice, spread(findings)) if part)
    yield f'<p class="soft">{escape(words)}.</p>'
    pictured = [finding for finding in findings if finding.picture][:PICTURED]
    if pictured:
        yield '<div class="grid">'
        for finding, images in zip(pictured, pool.map(thumbnails, pictured), strict=True):
            shown = "".join(f'<img src="{image}" alt="">' for image in images)
            yield f"<figure{' class=pair' if len(images) > 1 else ''}>{shown}"
            yield f"<figcaption>{escape(diagnosis.short(str(finding)))}</figcaption></figure>"
        yield "</div>"
    told = set(map(id, pictured))
    rest = [finding for finding in findings if id(finding) not in told]
    if rest:
        yield "<ul>"
        for finding in rest[:WRITTEN]:
            yield f"<li>{escape(diagnosis.short(str(finding)))}</li>"
        if len(rest) > WRITTEN:
            yield f"<li>... and {len(rest) - WRITTEN:,} more in the JSON file</li>"
        yield "</ul>"
    yield "</section>"
