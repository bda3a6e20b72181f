"""A report as words or as JSON; every format reads the same `Report` and escapes for itself."""

from __future__ import annotations

from mint2m_verify.finding import Report
from mint2m_verify.render.text import render_text

__all__ = ["render"]


def render(report: Report, form: str, *, colour: bool = False) -> str:
    """`report` as `text` or `json`; raises `ValueError` for another form: a bug of the caller."""
    if form == "json":
        from mint2m_verify.render.json_form import render_json

        return render_json(report)
    if form == "text":
        return render_text(report, colour=colour)
    raise ValueError(f"no such form: {form}")
