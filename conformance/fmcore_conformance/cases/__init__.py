"""The cases, one module per family; generators of inputs stand apart from checks."""
