"""The reproduction of the paper: imports the package, and is not part of it."""
