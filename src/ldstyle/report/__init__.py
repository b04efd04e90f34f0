"""Tables, figures and one page of what a grid has come to."""
