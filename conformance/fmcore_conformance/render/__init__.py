"""Statements as text, Markdown, JUnit and one self-contained HTML page."""
