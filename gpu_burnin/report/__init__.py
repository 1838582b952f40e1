"""Reports: the format (model, schema) and how it is shown (text)."""
