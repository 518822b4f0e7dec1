"""The report as one page that needs nothing else: no network, no script; light, dark, narrow or on paper."""

import base64
import re
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedprompt.harness.report.document import DIVERGED, FAILED, MISSING, Document
from fedprompt.harness.report.figures.style import PNG_DPI
from fedprompt.harness.report.tables import unique

PIXELS_PER_INCH = 144  # one and a half times the size in print, so that text in figures is as large as the page's own


class EmbeddedImage(NamedTuple):
    """A picture inside the page."""

    width: int  # in pixels of the page
    data: str  # base64


def render(document: Document) -> str:
    """The page, from `page.html.j2` and `page.css`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.globals.update(STOPPED=(DIVERGED, FAILED), MISSING=MISSING, anchor=_anchor, embed=_embed)
    anchors = unique(_anchor(section.title) for section in document.sections)
    sections = list(zip(anchors, document.sections, strict=True))
    return environment.get_template("page.html.j2").render(document=document, sections=sections)


def _embed(png: Path) -> EmbeddedImage:
    content = png.read_bytes()
    pixels = int.from_bytes(content[16:20], "big")  # of a PNG's header
    return EmbeddedImage(round(pixels / PNG_DPI * PIXELS_PER_INCH), base64.b64encode(content).decode())


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
