"""What the files of a set hold and no reader of this project takes: told when a set is converted."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yolo.data import Annotated, read_coco, read_darknet, read_voc, read_yolo
from yolo.data.formats.text import label_candidates, lines_of, read_text
from yolo.data.formats.xml import Node, parse_xml
from yolo.doctor.source import Reader, innermost

TAKEN = {
    "images": {"id", "file_name", "width", "height"},
    "annotations": {"id", "image_id", "category_id", "bbox", "area", "iscrowd", "ignore"},
    "categories": {"id", "name"},
}
PLAIN = ("", "0", "Unspecified", "[]", "{}")  # values that say nothing


def uncarried(readers: Mapping[str, Reader], parts: Mapping[str, Annotated]) -> list[str]:
    """In words: ``2870 x segmentation of annotations``."""
    counts: Counter[str] = Counter()
    sheets: set[Path] = set()
    for split, part in parts.items():
        reader = innermost(readers[split])
        if reader.func is read_coco:
            given = reader.keywords["annotations"]
            for path in [given] if isinstance(given, str | Path) else given:
                if Path(path) not in sheets:
                    sheets.add(Path(path))
                    _coco(json.loads(read_text(path)), counts)
        elif reader.func is read_voc:
            home = str(reader.keywords.get("annotations", "Annotations"))
            for record in part.records:
                picture = Path(record.path)
                for sheet in (
                    picture.parent.parent / home / f"{picture.stem}.xml",
                    picture.with_suffix(".xml"),
                ):
                    if sheet.is_file() and sheet not in sheets:
                        sheets.add(sheet)
                        _voc(parse_xml(sheet.read_bytes(), sheet), counts)
        elif reader.func in (read_yolo, read_darknet):
            for record in part.records:
                label = next((path for path in label_candidates(Path(record.path)) if path.is_file()), None)
                if label is not None and label not in sheets:
                    sheets.add(label)
                    rows = [line.split() for _, line in lines_of(read_text(label))]
                    counts["points of polygons"] += sum(len(row) > 5 for row in rows)
    return [f"{number} x {what}" for what, number in counts.items() if number]


def _coco(data: Mapping[str, Any], counts: Counter[str]) -> None:
    for table, taken in TAKEN.items():
        rows: Sequence[Mapping[str, Any]] = data[table]
        for row in rows:
            counts.update(f"{key} of {table}" for key, value in row.items() if key not in taken and value)


def _voc(tree: Node, counts: Counter[str]) -> None:
    for thing in tree.all("object"):
        for node in thing.children:
            if node.tag not in ("name", "bndbox", "difficult") and (
                node.children or node.text.strip() not in PLAIN
            ):
                counts[f"{node.tag} of objects"] += 1
