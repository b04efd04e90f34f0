"""Reports of grids: tables, figures and one page."""
