"""The report as Markdown, LaTeX, one page, and tables in the terminal."""
