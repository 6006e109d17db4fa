"""Statistics: pure functions, numbers in and numbers out."""
