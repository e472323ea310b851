"""A small XML tree that knows its lines and takes no document type definitions."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat


@dataclass
class Node:
    """One element."""

    tag: str
    line: int
    text: str = ""
    children: list["Node"] = field(default_factory=list)

    def find(self, tag: str) -> "Node | None":
        """The first direct child of that name."""
        return next((child for child in self.children if child.tag == tag), None)

    def all(self, tag: str) -> list["Node"]:
        """Every direct child of that name."""
        return [child for child in self.children if child.tag == tag]

    def value(self, tag: str, default: str = "") -> str:
        """Text of the first direct child of that name, without the blanks around it."""
        child = self.find(tag)
        return default if child is None else child.text.strip()


def parse_xml(data: bytes, path: str | Path) -> Node:
    """Read an XML file.

    Entities are how a small file fills the memory or reads another file, and no annotation needs them: any
    document type definition is refused.

    Raises:
        ValueError: The file is not well-formed, or has a document type definition.
    """
    root = Node("", 0)
    stack = [root]
    parser = expat.ParserCreate()
    parser.buffer_text = True

    def start(tag: str, _: dict[str, str]) -> None:
        node = Node(tag, parser.CurrentLineNumber)
        stack[-1].children.append(node)
        stack.append(node)

    def end(_: str) -> None:
        stack.pop()

    def text(part: str) -> None:
        stack[-1].text += part

    def doctype(*_: object) -> None:
        raise ValueError(
            f"{path}:{parser.CurrentLineNumber}: document type definitions (<!DOCTYPE) are refused"
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise ValueError(f"{path}:{error.lineno}: not well-formed XML: {reason}") from error
    except (LookupError, UnicodeError) as error:
        raise ValueError(f"{path}: its encoding is not known: {error}") from error
    return root.children[0]
