"""A linear probe on a frozen backbone."""
