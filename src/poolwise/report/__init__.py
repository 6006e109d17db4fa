"""Reports: what people see."""
