"""The report as `mint2m.report/v1`: one JSON object, ASCII only, whatever the verdict."""

from __future__ import annotations

import json

from mint2m_verify.finding import Report


def render_json(report: Report) -> str:
    """The report's document. ASCII escapes keep control and bidi characters of evidence out of a terminal as well."""
    return json.dumps(report.document(), ensure_ascii=True, indent=2, allow_nan=False).replace("\x7f", "\\u007f")
