"""Pascal VOC: an XML file per picture."""

from functools import partial
from xml.sax.saxutils import escape

from yolo.data.formats.annotated import Annotated
from yolo.data.formats.voc import read_voc
from yolo.data.writers.plan import Entry, Plan, shortest

_TAGS = ("xmin", "ymin", "xmax", "ymax")


def write_voc(plan: Plan) -> dict[str, partial[Annotated]]:
    """``JPEGImages``, ``Annotations``, ``ImageSets/Main/SPLIT.txt``, and ``classes.txt`` for the order of the ids."""
    lists = plan.root / "ImageSets" / "Main"
    sheets = plan.root / "Annotations"
    for folder in (lists, sheets):
        folder.mkdir(parents=True)
    for split, entries in plan.splits.items():
        for entry in entries:
            plan.place(entry, plan.root / "JPEGImages")
            stem = (sheets / entry.name).stem
            (sheets / f"{stem}.xml").write_text(_sheet(entry, plan), "utf-8")
        text = "".join(f"{(sheets / entry.name).stem}\n" for entry in entries)
        (lists / f"{split}.txt").write_text(text, "utf-8")
    (plan.root / "classes.txt").write_text("".join(f"{name}\n" for name in plan.classes), "utf-8")
    one_based = plan.options.one_based
    return {
        split: partial(read_voc, root=plan.root, split=split, classes=plan.classes, one_based=one_based)
        for split in plan.splits
    }


def _sheet(entry: Entry, plan: Plan) -> str:
    height, width = entry.size
    lines = ["<annotation>", f"  <filename>{escape(entry.name)}</filename>"]
    lines += [f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>"]
    truth = entry.truth
    for box, label, difficult in zip(
        truth.boxes, truth.labels.tolist(), truth.difficult.tolist(), strict=True
    ):
        values = [box[0] + 1, box[1] + 1, box[2], box[3]] if plan.options.one_based else list(box)
        corners = "".join(
            f"<{tag}>{shortest(value)}</{tag}>" for tag, value in zip(_TAGS, values, strict=True)
        )
        lines.append(
            f"  <object><name>{escape(plan.classes[label])}</name><difficult>{int(difficult)}</difficult>"
            f"<bndbox>{corners}</bndbox></object>"
        )
    return "\n".join([*lines, "</annotation>", ""])
