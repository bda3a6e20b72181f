"""A report in any form; every format reads the same `Report` and escapes for itself."""

from __future__ import annotations

import importlib

from mint2m_verify.finding import Report
from mint2m_verify.render.text import render_text

#: Module and function of each form beside text; loaded when it is asked for.
_FORMS = {
    "json": ("json_form", "render_json"),
    "sarif": ("sarif", "render_sarif"),
    "junit": ("junit", "render_junit"),
    "markdown": ("markdown", "render_markdown"),
    "github": ("github", "render_github"),
    "html": ("html", "render_html"),
}

FORMS = ("text", *_FORMS)

__all__ = ["FORMS", "render"]


def render(report: Report, form: str, *, colour: bool = False) -> str:
    """`report` as one of `FORMS`; raises `ValueError` for another: a bug of the caller."""
    if form == "text":
        return render_text(report, colour=colour)
    if form not in _FORMS:
        raise ValueError(f"no such form: {form}")
    module, function = _FORMS[form]
    text: str = getattr(importlib.import_module(f"{__name__}.{module}"), function)(report)
    return text
