"""What exists only to make CPUs fast; every part has a switch and is tested against the plain form."""
