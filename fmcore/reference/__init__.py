"""fmcore."""
