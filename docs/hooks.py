"""What the site changes in a page: references in docstrings become plain code."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>~?([\w.]+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Show ``:func:`fit``` as the name alone."""
    return _ROLE.sub(r"<code>\1</code>", html)
