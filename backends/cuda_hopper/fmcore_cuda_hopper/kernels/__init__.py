"""Device code: Gluon for the two attention passes, plain Triton around them."""
