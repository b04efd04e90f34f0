"""Aerial scenes drawn from a seed, with known masks: for demos, tests and method development without a download."""

from ldstyle.data.synthetic.domains import BUILT_IN, DOMAINS, VOCABULARY, Domain, find_domain, frequencies
from ldstyle.data.synthetic.layout import lay_out
from ldstyle.data.synthetic.plan import Layout
from ldstyle.data.synthetic.render import Scene, contact_sheet, draw_scene
from ldstyle.data.synthetic.write import write_scenes

__all__ = [
    "BUILT_IN",
    "DOMAINS",
    "VOCABULARY",
    "Domain",
    "Layout",
    "Scene",
    "contact_sheet",
    "draw_scene",
    "find_domain",
    "frequencies",
    "lay_out",
    "write_scenes",
]
