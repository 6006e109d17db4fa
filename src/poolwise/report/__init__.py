"""Report: dictionaries become tables, sentences, charts and a page."""
